"""What watching costs a training is said wherever it is more than its budget: of the steps after the first ones."""

from __future__ import annotations

import pytest

import trueline
from trueline.cli.run_end import watched
from trueline.judge.watching_cost import FEWEST, watching_cost
from trueline.render.report.glance import GLANCE, glance
from trueline.schema.files.run_manifest import Manifest
from trueline.schema.files.start import Start
from trueline.schema.plan import EARLY_STEPS, Plan
from trueline.store.reader import Run
from trueline.store.writer import RunWriter


def written(path, own_s, *, step_s=0.08, steps=EARLY_STEPS + FEWEST, plan=None):
    """A Run of one rank whose watching took ``own_s(step)`` of each step."""
    manifest = Manifest(model="model", adapter="single", plan=(plan or Plan()).kept())
    writer = RunWriter(path, rank=0, start=Start(step=0, manifest=manifest))
    for step in range(steps):
        writer.write({"step": step, "loss": 1.0, "step_s": step_s, "own_s": own_s(step)})
    writer.close()
    return str(path)


def last_line(path):
    return watched(path, before={})


def test_a_floor_above_the_budget_is_said_by_the_last_line_and_by_check(tmp_path):
    run = written(tmp_path / "run", lambda step: 0.0144 if step < EARLY_STEPS else 0.0029)
    took = "watching took 3.6 % of step time, 2.9 ms of each (aims at 1 %)"
    assert f": 400 steps, no gradients; {took}. Run: {run}." in last_line(run)
    assert f"{took}." in trueline.check(run).notes
    assert glance(Run(run))[GLANCE.index("Cost of watching")] == "3.6 % of step time, 2.9 ms of each (aims at 1 %)"


def test_what_the_first_steps_cost_is_said_as_such(tmp_path):
    run = written(tmp_path / "run", lambda step: 0.004, steps=200)
    assert "watching took 5 % of step time, 4 ms of each (first 300 steps; then it aims at 1 %)." in last_line(run)


@pytest.mark.parametrize(
    "cheap",
    [
        {"own_s": lambda step: 0.0144 if step < EARLY_STEPS else 0.0007},
        {"own_s": lambda step: 0.002, "step_s": 0.004, "steps": 100},
        {"own_s": lambda step: 0.02, "plan": Plan(every=1)},
        {"own_s": lambda step: 0.02, "plan": Plan(budget=0.3)},
    ],
    ids=["costly at first", "a toy's first steps", "the plan says how often", "the budget is larger"],
)
def test_nothing_is_said_where_the_budget_holds_or_none_is_set(tmp_path, cheap):
    run = written(tmp_path / "run", **cheap)
    assert "watching took" not in last_line(run) + str(trueline.check(run).notes)


def test_the_rank_that_pays_most_counts(tmp_path):
    path = written(tmp_path / "run", lambda step: 0.0001)
    writer = RunWriter(path, rank=1, creates=False)
    for step in range(EARLY_STEPS + FEWEST):
        writer.write({"step": step, "loss": 1.0, "step_s": 0.08, "own_s": 0.008})
    writer.close()
    assert watching_cost(Run(path)).share == pytest.approx(0.1)


def test_a_run_without_times_has_no_cost(tmp_path):
    writer = RunWriter(tmp_path / "run", rank=0)
    writer.write({"step": 0, "loss": 1.0})
    writer.close()
    assert watching_cost(Run(tmp_path / "run")) is None
