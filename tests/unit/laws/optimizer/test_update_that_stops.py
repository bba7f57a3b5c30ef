"""param-frozen, update-magnitude: what begins between two samples is dated so, and looked at again soon after."""

import importlib
import re

import pytest
import torch
from torch import nn

import trueline
from trueline.judge.check_run import check

STEPS, STOPS = 50, 25
ADAM = importlib.import_module("torch.optim.adam")


class NoMove:
    """Stands for Adam's function: from an update on its kernel writes to copies, or moves twice as far."""

    def __init__(self, monkeypatch, *, at, doubles=False, only=None):
        self._adam, self._at, self._doubles, self._only = ADAM.adam, at, doubles, only
        self.calls = 0
        monkeypatch.setattr(ADAM, "adam", self)

    def __call__(self, params, *args, **kwargs):
        self.calls += 1
        before = [param.detach().clone() for param in params]
        self._adam(params, *args, **kwargs)
        if self.calls > self._at:
            for position, (param, old) in enumerate(zip(params, before, strict=True)):
                if self._only in (None, position):
                    param.copy_(old + (2 * (param - old) if self._doubles else 0))


def trained(folder, plan=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    updates = torch.optim.Adam(model.parameters(), lr=1e-2)
    with trueline.watch(model, updates, out=folder, plan=plan or {"every": 1}):
        for _ in range(STEPS):
            updates.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            updates.step()
    run = trueline.open_run(folder)
    sampled = sorted(step for (step, _), text in run.texts("update_facts").items() if text)
    return check(run), sampled


@pytest.mark.parametrize(
    ("code", "how"),
    [("param-frozen", {}), ("param-frozen", {"only": 2}), ("update-magnitude", {"doubles": True})],
)
def test_the_step_is_said_as_an_interval_in_verdict_and_document(monkeypatch, tmp_path, code, how):
    NoMove(monkeypatch, at=STOPS, **how)
    report, sampled = trained(tmp_path / "run")
    (finding,) = [finding for finding in report.findings if finding.severity == "error"]
    low, high = finding.evidence["onset_interval"]
    assert (finding.code, finding.step_first) == (code, high)
    assert low <= STOPS <= high
    assert max(step for step in sampled if step < high) == low - 1
    assert f"since step {high} (between {low} and {high})" in str(report.verdict)


def test_an_update_that_looks_like_none_is_looked_at_again_in_the_next_steps(monkeypatch, tmp_path):
    NoMove(monkeypatch, at=STOPS)
    report, sampled = trained(tmp_path / "run")
    first = report.findings[0].step_first
    assert len([step for step in sampled if first < step <= first + 5]) == 3


def test_updates_that_move_are_looked_at_no_more_often(tmp_path):
    report, sampled = trained(tmp_path / "run")
    assert [finding for finding in report.findings if finding.is_grave] == []
    assert sampled == [*range(16), 35]


def test_what_is_wrong_from_the_first_update_on_has_no_interval(monkeypatch, tmp_path):
    NoMove(monkeypatch, at=0)
    report, _ = trained(tmp_path / "run")
    assert report.findings[0].step_first == 0
    assert "onset_interval" not in report.findings[0].evidence
    assert not re.search(r"since step 0 \(between", str(report.verdict))


def test_what_the_optimizer_no_longer_holds_is_dated_so(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    updates = torch.optim.Adam(model.parameters(), lr=1e-2)
    with trueline.watch(model, updates, out=tmp_path / "run", plan={"every": 1}):
        for step in range(2 * STEPS):
            if step == STOPS:
                updates.param_groups[0]["params"] = updates.param_groups[0]["params"][:2]
            updates.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            for param in model[2].parameters():
                assert param.grad is not None
            updates.step()
            model.zero_grad()
    report = check(trueline.open_run(tmp_path / "run"))
    (finding,) = [finding for finding in report.findings if finding.code == "optimizer-detached"]
    assert finding.evidence["onset_interval"] == [16, 35]
    assert "since step 35 (between 16 and 35)" in str(report.verdict)
