"""What goes wrong around training never stops it: lost Sinks, broken probes, an output that is taken."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import trueline
from trueline.capture.job.safe_sink import SafeSink
from trueline.capture.probes.gradients import GradientProbe
from trueline.capture.probes.losses.loss import LossProbe
from trueline.capture.step import working_parts
from trueline.schema.errors import CaptureError, InputError, PlanError
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.finding import Finding


class FullDisk:
    """A Sink that takes ``room`` records and then raises as a full disk does."""

    def __init__(self, room):
        self.room, self.taken, self.closed = room, [], False

    def describe(self, manifest, env):
        self.write(env)

    def write(self, record):
        if len(self.taken) >= self.room and not isinstance(record, Finding):
            raise OSError(errno.ENOSPC, "No space left on device")
        self.taken.append(record)

    def close(self):
        self.closed = True


def test_a_full_disk_ends_the_run_with_a_finding_and_nothing_else(caplog):
    sink = FullDisk(room=2)
    safe_sink = SafeSink(sink, rank=3)
    safe_sink.describe(None, RankEnv())
    for step in range(5):
        safe_sink.step = step
        safe_sink.write({"step": step})
    safe_sink.close()
    assert [type(record).__name__ for record in sink.taken] == ["RankEnv", "dict", "Finding"]
    last = sink.taken[-1]
    assert last.code == "watch-degraded"
    assert last.step_first == 1
    assert "No space left" in last.claim
    assert sink.closed
    assert caplog.text.count("Training goes on") == 1


def train(watch_out, steps=4, **plan):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=watch_out, plan={"every": 1, **plan}) if watch_out else None
    for _ in range(steps):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return [param.clone() for param in model.parameters()]


def test_a_broken_probe_leaves_one_finding_and_the_rest_goes_on(tmp_path, monkeypatch):
    expected = train(None)

    def fail(*_args, **_kwargs):
        raise RuntimeError("no luck")

    monkeypatch.setattr(GradientProbe, "payload", fail)
    result = train(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(expected, result, strict=True))
    run = trueline.open_run(tmp_path / "run")
    assert len(run.live_findings) == 1
    assert "no luck" in run.live_findings[0].claim
    assert len(run.steps) == 4
    assert run.pivot("loss")[1].all()
    assert not run.pivot("grad_norm")[1].any()


def test_a_loss_probe_that_failed_collects_nothing_more(tmp_path, monkeypatch):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1})
    probe = watch._probes.loss
    monkeypatch.setattr(LossProbe, "result", lambda *_: 1 / 0)
    for _ in range(5):
        model(torch.ones(1, 2)).sum().backward()
        watch.loss(1.0)
        optimizer.step()
    assert [*probe._given_losses, *probe._backward] == [], "for ever, as nobody forgets them any more"
    watch.close()
    (finding,) = trueline.open_run(tmp_path / "run").live_findings
    assert finding.claim.startswith("Watching of loss stopped on rank 0 at step 0: ZeroDivisionError")


def test_watching_that_cannot_begin_leaves_torch_as_it_was(tmp_path, monkeypatch):
    def fail(*_args, **_kwargs):
        raise CaptureError("no parameter is trained by all ranks")

    backward, scale = torch.autograd.backward, torch.amp.GradScaler.scale
    others = len(working_parts._recording)
    monkeypatch.setattr("trueline.capture.step.recorder.make_layout", fail)
    with pytest.raises(CaptureError, match="trained by all ranks"):
        train(tmp_path / "run")
    assert torch.autograd.backward is backward
    assert torch.amp.GradScaler.scale is scale
    assert len(working_parts._recording) == others, "sessions of other models are not paused for it"


def test_a_nan_loss_is_recorded_as_it_is(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1}):
        (model(torch.ones(1, 2)) * float("nan")).sum().backward()
        optimizer.step()
    run = trueline.open_run(tmp_path / "run")
    values, measured = run.pivot("loss")
    assert measured.all()
    assert values[0, 0] != values[0, 0]
    assert [finding.code for finding in trueline.check(run).findings] == ["worker-nonfinite"]


def test_an_output_that_is_taken_is_refused_and_kept(tmp_path):
    train(tmp_path / "run")
    rows = trueline.open_run(tmp_path / "run").table().num_rows
    with pytest.raises(InputError, match="run"):
        train(tmp_path / "run")
    assert trueline.open_run(tmp_path / "run").table().num_rows == rows
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious", encoding="utf-8")
    with pytest.raises(InputError):
        trueline.watch(nn.Linear(2, 2), out=foreign, overwrite=True)
    assert (foreign / "thesis.tex").read_text(encoding="utf-8") == "precious"


def test_what_cannot_be_watched_is_refused_before_anything_is_hooked(tmp_path):
    backward = torch.Tensor.backward
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError):
        trueline.watch(nn.Linear(2, 2), out=tmp_path / "file" / "run")
    with pytest.raises(PlanError):
        trueline.watch(nn.Linear(2, 2), out=tmp_path / "a", plan={"evry": 1})
    with pytest.raises(PlanError, match="worker_groups name rank 1, but the ranks of this job are 0 to 0"):
        trueline.watch(nn.Linear(2, 2), out=tmp_path / "a", plan={"worker_groups": [[0, 1]]})
    with pytest.raises(CaptureError, match="optimizer is a"):
        trueline.watch(nn.Linear(2, 2), SimpleNamespace(), out=tmp_path / "b")
    with pytest.raises(CaptureError, match="no parameter"):
        trueline.watch(nn.ReLU(), out=tmp_path / "c")
    assert torch.Tensor.backward is backward
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "c").exists()


def test_frozen_parameters_are_left_out_and_evaluation_is_not_counted(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1}):
        for _ in range(2):
            model.eval()
            with torch.no_grad():
                model(torch.zeros(7, 4))
            model.train()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    run = trueline.open_run(tmp_path / "run")
    assert run.env[0].params == ["2.weight", "2.bias"]
    assert {len(digests) for digests in run.lists("sample_digests").values()} == {3}


def test_a_scripted_model_takes_no_hooks_and_is_watched(tmp_path):
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=tmp_path / "run")
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    assert trueline.open_run(tmp_path / "run").steps.tolist() == [0, 1]


@pytest.mark.parametrize("plan", [None, "modules"])
def test_a_step_that_a_forward_pass_ends_takes_its_hooks_off_while_torch_goes_through_them(tmp_path, plan):
    """The update is compiled, so that it is noticed only there; the hooks are the model's own."""
    model = nn.BatchNorm1d(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update = torch.compile(optimizer.step, backend="eager")
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan=plan):
        for _ in range(4):
            model(torch.randn(8, 4)).square().mean().backward()
            update()
            optimizer.zero_grad()
    assert trueline.open_run(tmp_path / "run").live_findings == []
