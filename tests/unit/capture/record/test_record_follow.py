"""One session records by one Plan after another: what was counted and stored under the first holds for the next."""

from __future__ import annotations

import torch
from tests.unit.recording import Recording
from torch import nn

from trueline.schema.plan import Plan


def run(recording, model, number):
    """The rows of one step; none where it is not recorded."""
    before = len(recording.steps)
    recording.step(number, lambda: model(torch.ones(2, 4)).sum().backward())
    return recording.steps[before] if len(recording.steps) > before else []


def start(plan):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return Recording(model, plan), model


def test_what_is_recorded_follows_the_plan_and_ends_and_begins_with_it():
    recording, model = start({"preset": "modules"})
    assert {row["kind"] for row in run(recording, model, 0)} >= {"module"}
    recording.session.follow(None)
    assert not recording.session.wants(1)
    recording.session.follow(Plan.load({"preset": "ops", "depth": "fingerprint", "phases": ["fwd"]}))
    rows = run(recording, model, 2)
    assert {row["kind"] for row in rows} == {"op"}
    assert {row["phase"] for row in rows} == {"fwd"}
    assert all("fingerprint" in row for row in rows)


def test_stored_bytes_of_all_plans_count_for_the_cap():
    """Every input and output is float32 [2, 4]: 32 bytes."""
    recording, model = start({"preset": "modules", "depth": "tensor"})
    run(recording, model, 0)
    stored = sum(len(record.data) for record in recording.tensors.values())
    assert stored > 0
    for number, (spare, more) in enumerate([(31, 0), (32, 1)], start=1):
        recording.tensors.clear()
        plan = {"preset": "modules", "depth": "tensor", "phases": ["fwd"], "max_bytes": stored + spare}
        recording.session.follow(Plan.load(plan))
        run(recording, model, number)
        assert len(recording.tensors) == more


def test_a_ring_keeps_the_latest_steps_until_a_plan_without_one():
    recording, model = start({"preset": "modules", "ring": 2})
    for number in range(4):
        recording.session.open_step(number)
        model(torch.full((2, 4), float(number))).sum().backward()
        recording.session.close_step()
    assert recording.steps == []
    recording.session.follow(Plan.load("modules"))
    assert [rows[0]["max"] for rows in recording.steps] == [2.0, 3.0]
    assert run(recording, model, 4)


def test_a_call_stack_keeps_its_number():
    recording, model = start({"preset": "modules"})
    numbers = [{row["stack"] for row in run(recording, model, 0)} - {None}]
    frames = dict(recording.stacks)
    recording.session.follow(Plan.load({"preset": "modules", "depth": "fingerprint"}))
    numbers += [{row["stack"] for row in run(recording, model, 1)} - {None}]  # from another line
    assert numbers[0].isdisjoint(numbers[1])
    assert frames.items() <= recording.stacks.items()
    assert set(recording.stacks) == numbers[0] | numbers[1]
