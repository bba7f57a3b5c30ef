"""Preset ``monitor``: steps within the budget, what updates did, a ring of the last steps; and no bit of training."""

import itertools
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import trueline
from trueline.capture.record import guard
from trueline.capture.record.guard import counted
from trueline.capture.step import schedule
from trueline.schema.errors import PlanError
from trueline.schema.plan import Plan

STEPS = 12


def train(out, plan, *, spoiled=None, spiked=None, raises=None, steps=STEPS):
    """Parameters before and after each step; watched with ``plan``, unless that is None."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    watch = nullcontext() if plan is None else trueline.watch(model, optimizer, out=str(out), plan=plan)
    kept = [[param.detach().clone() for param in model.parameters()]]
    draw = torch.Generator().manual_seed(1)
    with watch:
        for step in range(steps):
            x = torch.randn(8, 4, generator=draw)
            if step == spoiled:
                x[0, 0] = torch.nan
            loss = nn.functional.cross_entropy(model(x), torch.randint(2, (8,), generator=draw))
            (loss * 100 if step == spiked else loss).backward()
            if step == spoiled:
                optimizer.zero_grad()  # the loss is NaN, and the weights stay finite
            if step == raises:
                raise RuntimeError("out of patience")
            optimizer.step()
            optimizer.zero_grad()
            kept.append([param.detach().clone() for param in model.parameters()])
    return kept, optimizer


def rows_of(out, **chosen):
    return trueline.open_run(str(out)).records(**chosen).to_pylist()


def test_training_is_bitwise_equal_with_a_monitor_and_without(tmp_path):
    plain, _ = train(None, None)
    watched, _ = train(tmp_path / "run", {"preset": "monitor", "every": 1, "ring": 3})
    assert all(
        torch.equal(a, b) for one, other in zip(plain, watched, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_sampled_steps_are_recorded_with_every_kind_of_value(tmp_path):
    kept, optimizer = train(tmp_path / "run", {"preset": "monitor", "every": 4})
    assert trueline.open_run(str(tmp_path / "run")).record_steps.tolist() == [0, 4, 8]
    rows = rows_of(tmp_path / "run", steps=[8])
    kinds = {(row["phase"], row["kind"]) for row in rows}
    assert kinds == {
        *(("fwd", "module"), ("bwd", "module"), ("bwd", "param"), ("param", "param"), ("grad", "param")),
        ("opt", "param"),
    }
    opt = {(row["name"], row["slot"]): row for row in rows if row["phase"] == "opt"}
    assert {slot for _, slot in opt} == {"update", "state.exp_avg", "state.exp_avg_sq"}
    for place, name in enumerate(["0.weight", "0.bias", "2.weight", "2.bias"]):
        change = kept[9][place].double() - kept[8][place].double()
        assert opt[name, "update"]["sum_sq"] == pytest.approx(float(change.square().sum()), rel=1e-4)
        assert opt[name, "update"]["max"] == pytest.approx(float(change.max()), rel=1e-4)
        last = next(row for row in rows if (row["phase"], row["name"]) == ("param", name))
        assert last["sum_sq"] == pytest.approx(float(kept[8][place].double().square().sum()))
    assert optimizer.state


def test_names_and_phases_choose_what_is_recorded(tmp_path):
    train(tmp_path / "run", {"preset": "monitor", "every": 4, "names": ["2*"], "phases": ["grad", "opt"]})
    assert {(row["phase"], row["name"]) for row in rows_of(tmp_path / "run")} == {
        (phase, name) for phase in ("grad", "opt") for name in ("2.weight", "2.bias")
    }


def test_a_ring_is_written_when_a_finding_is_seen_and_says_where_to_go_back_to(tmp_path):
    plan = {"preset": "monitor", "every": 2, "ring": 3, "when": ["worker-nonfinite"], "when_steps": 2}
    train(tmp_path / "run", plan, spoiled=8, steps=20)
    run = trueline.open_run(str(tmp_path / "run"))
    assert run.record_steps.tolist() == [4, 6, 8, 9, 10]
    (started,) = [each for each in run.live_findings if each.code == "recording-started"]
    assert started.evidence["clean_step"] == 7
    assert started.next[-1] == "Go back to a checkpoint of step 7 or before."
    nan = [row["step"] for row in rows_of(tmp_path / "run", phases=["fwd"]) if row["nan"]]
    assert set(nan) == {8}


@pytest.mark.in_turn
def test_a_ring_is_written_when_a_gradient_jumps(tmp_path):
    plan = {"preset": "monitor", "every": 1, "ring": 3, "when": ["grad-spike"], "when_steps": 2}
    train(tmp_path / "healthy", plan, steps=50)
    assert trueline.open_run(str(tmp_path / "healthy")).record_steps.tolist() == []
    train(tmp_path / "run", plan, spiked=40, steps=50)
    run = trueline.open_run(str(tmp_path / "run"))
    assert run.record_steps.tolist() == [38, 39, 40, 41, 42]
    (started,) = [each for each in run.live_findings if each.code == "recording-started"]
    assert "steps 41 to 42 are recorded, beside the latest 3 that were kept in memory" in started.claim
    assert started.claim.endswith("It was not yet there at step 39. Go back to a checkpoint of step 39 or before.")


def test_a_ring_is_written_when_training_raises_and_else_never(tmp_path):
    plan = {"preset": "monitor", "every": 2, "ring": 3}
    train(tmp_path / "healthy", plan)
    assert trueline.open_run(str(tmp_path / "healthy")).record_steps.tolist() == []
    with pytest.raises(RuntimeError, match="patience"):
        train(tmp_path / "raised", plan, raises=9)
    assert trueline.open_run(str(tmp_path / "raised")).record_steps.tolist() == [4, 6, 8]


class Clocked:
    _monitors, _spending = True, False

    def __init__(self):
        self.spent = []
        self._spend = self.spent.append

    @counted
    def inner(self):
        return "inner"

    @counted
    def outer(self):
        return self.inner()


def test_time_inside_of_a_monitor_counts_once_and_of_other_presets_not(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(guard.time, "thread_time", lambda: float(next(ticks)))
    session = Clocked()
    assert session.outer() == "inner"
    assert session.spent == [1.0]
    session._monitors = False
    session.outer()
    assert session.spent == [1.0]


def test_the_time_of_a_monitor_is_part_of_the_budget(tmp_path, monkeypatch):
    """A clock that ticks once a look: a recorded step has many more looks than one that is not."""
    monkeypatch.setattr(guard.time, "thread_time", lambda ticks=itertools.count(): float(next(ticks)))
    train(tmp_path / "run", {"preset": "monitor", "every": 4})
    own_s = trueline.open_run(str(tmp_path / "run")).pivot("own_s")[0][:, 0]
    assert own_s[[4, 8]].min() > 10
    assert own_s[[5, 6, 7, 9]].max() < 10


def test_a_monitor_that_costs_too_much_thins_itself_out_in_one_process_too(tmp_path, monkeypatch):
    """By the clock of the test above watching takes seconds of each step, which takes milliseconds."""
    monkeypatch.setattr(guard.time, "thread_time", lambda ticks=itertools.count(): float(next(ticks)))
    monkeypatch.setattr(schedule, "EARLY_STEPS", 0)
    train(tmp_path / "run", {"preset": "monitor"})
    assert trueline.open_run(str(tmp_path / "run")).record_steps.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"ring": 3}, "preset 'workers' records nothing"),
        ({"preset": "monitor", "depth": "tensor", "ring": 3}, "memory"),
    ],
)
def test_a_ring_that_cannot_be_is_refused(plan, why):
    with pytest.raises(PlanError, match=why):
        Plan.load(plan)
