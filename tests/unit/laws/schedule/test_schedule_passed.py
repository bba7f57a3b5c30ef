"""Schedules that training goes on after the end of, and those that are made to go on."""

import functools
import json
import math

import pytest
import torch
from tests.unit.healthy_run import write_run, write_starts
from tests.unit.trained_updates import mlp
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
    StepLR,
)

import trueline
from trueline.laws.schedule import facts, schedule_passed
from trueline.laws.schedule.lengths import description
from trueline.schema.errors import CannotTell


def optimizer_of(num_groups=1):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2))]} for _ in range(num_groups)]
    return torch.optim.SGD(groups, lr=0.1)


def cosine(step, num_training_steps, num_warmup_steps=0):
    return 0.5 * (1 + math.cos(math.pi * (step - num_warmup_steps) / (num_training_steps - num_warmup_steps)))


def closing_over(total_steps):
    return lambda step: cosine(step, total_steps)


class Decay:
    def __init__(self):
        self.max_iters = 30

    def __call__(self, step):
        return cosine(step, self.max_iters)

    def method(self, step):
        return self(step)


MAX_STEPS = 40


def reads_a_global(step):
    return cosine(step, MAX_STEPS)


@pytest.mark.parametrize(
    ("make", "length"),
    [
        (lambda optimizer: CosineAnnealingLR(optimizer, T_max=5), ("T_max", 5)),
        (lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=9), ("total_steps", 9)),
        (lambda optimizer: PolynomialLR(optimizer, total_iters=7), ("total_iters", 7)),
        (lambda optimizer: LinearLR(optimizer, 1.0, 0.1, total_iters=6), ("total_iters", 6)),
        (lambda optimizer: LinearLR(optimizer, 0.1, 1.0, total_iters=6), None),
        (lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 4), None),
        (lambda optimizer: CyclicLR(optimizer, 0.01, 0.1), None),
        (lambda optimizer: StepLR(optimizer, 3), None),
        (lambda optimizer: LambdaLR(optimizer, functools.partial(cosine, num_training_steps=12)),
         ("num_training_steps", 12)),
        (lambda optimizer: LambdaLR(optimizer, closing_over(20)), ("total_steps", 20)),
        (lambda optimizer: LambdaLR(optimizer, Decay()), ("max_iters", 30)),
        (lambda optimizer: LambdaLR(optimizer, Decay().method), ("max_iters", 30)),
        (lambda optimizer: LambdaLR(optimizer, reads_a_global), ("MAX_STEPS", 40)),
        (lambda optimizer: LambdaLR(optimizer, lambda step: 0.9**step), None),
    ],
)  # fmt: skip
def test_the_length_that_a_schedule_declares(make, length):
    facts = description(make(optimizer_of()))
    assert (facts.get("name"), facts.get("length")) == (length or (None, None))


def test_the_length_of_warm_up_stable_and_decay_is_their_sum():
    bound = functools.partial(lambda step, **lengths: 1.0, num_warmup_steps=2, num_stable_steps=5, num_decay_steps=3)
    assert description(LambdaLR(optimizer_of(), bound))["length"] == 10


def test_groups_with_lengths_of_their_own_have_no_one_length():
    functions = [functools.partial(cosine, num_training_steps=number) for number in (5, 9)]
    assert "length" not in description(LambdaLR(optimizer_of(2), functions))


def test_an_object_that_raises_where_it_is_looked_at_has_no_length():
    class Hostile(dict):
        def items(self):
            raise RuntimeError

        __iter__ = items

    scheduler = StepLR(optimizer_of(), 3)
    scheduler.lr_lambdas = [type("F", (), {"__dict__": property(lambda self: Hostile())})()]
    assert description(scheduler) == {"class": "StepLR"}


def trained(folder, make, *, steps=12, times=1):
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = make(optimizer)
    with trueline.watch(model, optimizer, out=folder):
        for _ in range(steps):
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            for _ in range(times):
                scheduler.step()
            optimizer.zero_grad()
    return schedule_passed.check(trueline.open_run(folder))


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: CosineAnnealingLR(optimizer, T_max=12),
        lambda optimizer: CosineAnnealingLR(optimizer, T_max=9),
        lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 3),
        lambda optimizer: CyclicLR(optimizer, 0.01, 0.1, step_size_up=2),
        lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=13),
        lambda optimizer: LinearLR(optimizer, 0.1, 1.0, total_iters=3),
        lambda optimizer: SequentialLR(
            optimizer, [LinearLR(optimizer, 0.1, total_iters=4), CosineAnnealingLR(optimizer, T_max=8)], [4]
        ),
        lambda optimizer: ChainedScheduler([LinearLR(optimizer, total_iters=4), CosineAnnealingLR(optimizer, 12)]),
        lambda optimizer: LambdaLR(optimizer, functools.partial(lambda step, total: 0.5 if step < 6 else 1, total=4)),
    ],
    ids=["all", "an error in counting", "restarts", "cyclic", "one cycle", "warm-up", "in sequence", "chained",
         "a number that is no end"],
)  # fmt: skip
def test_schedules_that_are_not_passed_or_made_to_go_on(tmp_path, make):
    assert trained(tmp_path / "run", make) == []


def test_a_cosine_that_climbs_again(tmp_path):
    (finding,) = trained(tmp_path / "run", lambda optimizer: CosineAnnealingLR(optimizer, T_max=2))
    assert (finding.severity, finding.step_first, finding.measured, finding.expected) == ("warning", 2, 11, 2)
    assert finding.claim == (
        "The schedule (CosineAnnealingLR, T_max 2) was at its end at step 2, and 9 more updates were made: the "
        "learning rate climbs again, and came to its lowest 3 times."
    )


def test_the_last_of_a_sequence_that_climbs_again(tmp_path):
    def make(optimizer):
        parts = [LinearLR(optimizer, 0.1, total_iters=2), CosineAnnealingLR(optimizer, T_max=4)]
        return SequentialLR(optimizer, parts, [2])

    (finding,) = trained(tmp_path / "run", make)
    assert (finding.step_first, finding.evidence["kind"]) == (6, "climbs")


def test_a_schedule_that_is_stepped_once_a_process(tmp_path):
    def make(optimizer):
        return LambdaLR(optimizer, functools.partial(cosine, num_training_steps=12))

    (finding,) = trained(tmp_path / "run", make, times=2)
    assert (finding.step_first, finding.evidence["pace"]) == (6, 2)
    assert "goes on by 2 of its steps an update" in finding.claim


def test_a_rate_that_stays_where_it_fell_to_is_to_be_confirmed(tmp_path):
    (finding,) = trained(tmp_path / "run", lambda optimizer: LinearLR(optimizer, 1.0, 0.1, total_iters=4))
    assert (finding.severity, finding.step_first, finding.evidence["kind"]) == ("confirm", 4, "stays")
    assert "stays at 0.01, where it was 0.0775" in finding.claim


def test_a_rate_that_stays_0_is_told_by_another_check(tmp_path):
    assert trained(tmp_path / "run", lambda optimizer: LinearLR(optimizer, 1.0, 0.0, total_iters=4)) == []


def rows_of(epochs, *, length, first=0, optimizers=(0,), kind="CosineAnnealingLR"):
    """Rows of one rank at a cosine of ``length`` steps, whose ``last_epoch`` is that of ``epochs`` at each update."""
    facts = [
        json.dumps({"optimizer": number, "schedules": [{"class": kind, "name": "T_max", "length": length}]})
        for number in optimizers
    ]
    rows = {
        (first + step, 0): {"lr": [0.1 * cosine(epoch, length)], "schedule_epochs": [epoch], "epoch": 0}
        for step, epoch in enumerate(epochs)
    }
    for number, text in enumerate(facts):
        rows[first + number, 0]["schedule_facts"] = text
    return rows


def test_a_schedule_of_epochs_may_be_one_too_long(tmp_path):
    epochs = [step // 4 for step in range(28)]
    assert schedule_passed.check(write_run(tmp_path / "one", rows_of(epochs, length=5))) == []
    (finding,) = schedule_passed.check(write_run(tmp_path / "two", rows_of(epochs, length=4)))
    assert (finding.step_first, finding.evidence["updates_after"]) == (16, 8)


def test_every_start_of_the_job_is_looked_at(tmp_path):
    starts = [(0, rows_of(range(8), length=8)), (8, rows_of(range(8, 24), length=8, first=8))]
    (finding,) = schedule_passed.check(write_starts(tmp_path / "run", starts))
    assert finding.step_first == 8


def test_optimizers_that_take_turns_are_left_alone(tmp_path):
    run = write_run(tmp_path / "run", rows_of(range(24), length=8, optimizers=(0, 1)))
    assert schedule_passed.check(run) == []


def test_a_run_without_schedulers_cannot_be_told(tmp_path):
    with pytest.raises(CannotTell, match="no scheduler"):
        schedule_passed.check(write_run(tmp_path / "run", {(0, 0): {"lr": [0.1]}}))


def test_the_fact_of_a_schedule(tmp_path):
    text, (numbers,) = facts.schedules(write_run(tmp_path / "run", rows_of(range(0, 24, 2), length=12)))
    assert text == "schedule CosineAnnealingLR (T_max 12), by 2 steps an update, at its end at step 6"
    assert (numbers["steps_an_update"], numbers["end_step"], numbers["after"]) == (2, 6, 5)
    epochs = [step // 4 for step in range(12)]
    text, _ = facts.schedules(write_run(tmp_path / "epochs", rows_of(epochs, length=12)))
    assert text == "schedule CosineAnnealingLR (T_max 12), less than once an update, at step 2 of 12 in the last update"


def test_a_job_without_a_schedule_has_no_fact_of_one(tmp_path):
    assert facts.schedules(write_run(tmp_path / "run", {(0, 0): {"lr": [0.1]}})) is None
