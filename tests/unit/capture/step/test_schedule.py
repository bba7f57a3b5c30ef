"""Sampling keeps to the Plan and the budget, and every rank decides alike."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from trueline.capture.step import schedule as schedule_module
from trueline.capture.step.schedule import (
    ALLOWANCE_S,
    DENSE,
    DIGESTED_FIRST,
    EARLY_INTERVAL,
    LOOKS_AGAIN,
    MAX_INTERVAL,
    REDUCED_EVERY,
    REDUCED_FIRST,
    Recheck,
    Schedule,
)
from trueline.schema.plan import EARLY_STEPS, Plan


def test_a_fixed_interval_is_kept():
    schedule = Schedule(Plan(every=3))
    assert [step for step in range(10) if schedule.samples(step)] == [0, 3, 6, 9]


def test_steps_outside_the_plan_are_left_alone():
    schedule = Schedule(Plan(every=1, steps=(4, 7)))
    assert [step for step in range(10) if schedule.samples(step)] == [4, 5, 6]
    assert not schedule.digests_params(3)
    assert schedule.digests_params(4)


def run(schedule, *, sampled_s, plain_s, step_s, steps):
    """Steps that were sampled, with every sum read one step late."""
    taken, waiting = [], []
    for step in range(steps):
        if schedule.samples(step):
            taken.append(step)
            waiting.append((step, schedule.interval))
        if len(waiting) > 1:
            sample, interval = waiting.pop(0)
            seen_plain_s = plain_s if step + 1 > len(taken) else 0.0
            schedule.spent(plain_s=seen_plain_s, sampled_s=sampled_s, step_s=step_s)
            schedule.decide(sample, interval=interval)
    return taken


def test_without_an_interval_every_step_is_sampled_while_the_allowance_lasts():
    taken = run(Schedule(Plan()), sampled_s=ALLOWANCE_S / 50, plain_s=0.0, step_s=0.1, steps=45)
    assert taken == list(range(45))


def test_the_first_steps_of_a_larger_model_together_cost_two_percent_more():
    """A sampled step costs 4 % of 76 ms, another one 0.3 ms."""
    sampled_s, plain_s, step_s = 0.04 * 0.076, 0.0003, 0.076
    taken = run(Schedule(Plan()), sampled_s=sampled_s, plain_s=plain_s, step_s=step_s, steps=EARLY_STEPS)
    assert taken[:DENSE] == list(range(DENSE))
    cost_s = len(taken) * sampled_s + (EARLY_STEPS - len(taken)) * plain_s
    assert cost_s / (EARLY_STEPS * step_s) <= 0.0215


def test_short_steps_are_all_sampled_while_the_allowance_lasts():
    taken = run(Schedule(Plan()), sampled_s=0.003, plain_s=0.0003, step_s=0.004, steps=EARLY_STEPS)
    assert taken == list(range(EARLY_STEPS))


def test_then_the_interval_keeps_the_cost_within_the_budget():
    sampled, plain, step_s = 0.02, 0.0005, 0.5
    taken = run(Schedule(Plan(budget=0.01)), sampled_s=sampled, plain_s=plain, step_s=step_s, steps=2000)
    gap = taken[-1] - taken[-2]
    assert gap == 5  # ceil((0.02 - 0.0005) / (0.01 * 0.5 - 0.0005))
    assert (plain + (sampled - plain) / gap) / step_s <= 0.01


@given(st.floats(1e-3, 5.0), st.floats(0.0, 1.0), st.integers(0, 1000))
def test_early_steps_are_sampled_often_enough_whatever_it_costs(sampled_s, plain_s, first):
    schedule = Schedule(Plan(budget=0.001), first=first)
    taken = [first + step for step in run_from(schedule, first, sampled_s=sampled_s, plain_s=plain_s, step_s=0.1)]
    assert max(b - a for a, b in itertools.pairwise(taken) if b < first + EARLY_STEPS) <= EARLY_INTERVAL


def run_from(schedule, first, *, sampled_s, plain_s, step_s):
    """As ``run``, for a job that goes on with step ``first``; steps are counted from there."""
    taken = []
    for step in range(first, first + EARLY_STEPS + 200):
        if schedule.samples(step):
            taken.append(step - first)
            schedule.spent(plain_s=plain_s, sampled_s=sampled_s, step_s=step_s)
            schedule.decide(step, interval=schedule.interval)
    return taken


def test_a_decision_tells_what_it_costs():
    schedule = Schedule(Plan(budget=0.01))
    schedule.spent(plain_s=0.01, sampled_s=ALLOWANCE_S, step_s=1.0)
    early = schedule.decide(0, interval=1)
    assert (early.interval, early.by_budget) == (EARLY_INTERVAL, MAX_INTERVAL)
    late = schedule.decide(EARLY_STEPS, interval=1)
    assert late.interval == late.by_budget == MAX_INTERVAL


def test_a_budget_that_cannot_be_kept_ends_at_the_widest_interval():
    taken = run(Schedule(Plan(budget=0.001)), sampled_s=0.5, plain_s=0.1, step_s=1.0, steps=1000)
    assert taken[-1] - taken[-2] == MAX_INTERVAL


@given(st.lists(st.integers(0, 2), min_size=200, max_size=200), st.floats(0.01, 1.0))
def test_ranks_that_read_sums_at_different_times_sample_the_same_steps(lags, sampled_s):
    """One rank reads each sum at once, the other as late as it may: both must choose the same steps."""
    prompt, late = Schedule(Plan()), Schedule(Plan())
    kept: dict[str, list[int]] = {"prompt": [], "late": []}
    waiting: list[tuple[int, int]] = []
    for step in range(200):
        while waiting and (waiting[0][0] + 2 * waiting[0][1] <= step or lags[step] == 0):
            read(late, waiting.pop(0), sampled_s)
        if prompt.samples(step):
            kept["prompt"].append(step)
            read(prompt, (step, prompt.interval), sampled_s)
        if late.samples(step):
            kept["late"].append(step)
            waiting.append((step, late.interval))
    assert kept["prompt"] == kept["late"]


def read(schedule, sample, sampled_s):
    schedule.spent(plain_s=0.001, sampled_s=sampled_s, step_s=0.7)
    schedule.decide(sample[0], interval=sample[1])


def test_sketches_are_kept_once_a_window():
    schedule = Schedule(Plan(matrix_every=10))
    assert [step for step in range(0, 35, 3) if schedule.keeps_sketches(step)] == [0, 12, 21, 30]


def looked_at(answers):
    """Samples (numbers) at which the reduction's result was looked at, when each showed (straight, mean)."""
    recheck, taken = Recheck(), []
    for number, (straight, mean) in enumerate(answers):
        if recheck.due():
            taken.append(number)
        recheck.update(straight=straight, mean=mean)
    return taken


def test_a_reduction_that_keeps_its_promise_is_looked_at_now_and_then():
    first = list(range(REDUCED_FIRST))
    assert looked_at([(True, True)] * 40) == [*first, *range(REDUCED_EVERY, 40, REDUCED_EVERY)]


def test_steady_clipping_raises_no_doubt():
    assert looked_at([(False, True)] * 40) == looked_at([(True, True)] * 40)


def test_a_first_factor_and_any_other_shape_raise_doubt_at_the_next_sample():
    scaled = [(True, True)] * 10 + [(False, True)] * 10
    assert 11 in looked_at(scaled)
    assert 12 not in looked_at(scaled)
    wrong = [(True, True)] * 10 + [(False, False)] * 5 + [(True, True)] * 5
    assert set(range(11, 16)) <= set(looked_at(wrong))


def test_the_first_interval_is_short_enough_to_learn_what_plain_steps_cost(monkeypatch):
    """Sampled steps cost 5 % of a step, plain ones 0.5 %: 4.5 / 0.5 = 9, after a first guess of 5 / 1 = 5."""
    monkeypatch.setattr(schedule_module, "EARLY_STEPS", 0)
    taken = run(Schedule(Plan(budget=0.01)), sampled_s=0.05, plain_s=0.005, step_s=1.0, steps=120)
    intervals = [after - before for before, after in itertools.pairwise(taken)]
    assert intervals[-1] == 9
    assert max(intervals) == 9
    assert 5 in intervals


def test_another_plan_changes_the_interval_and_not_which_steps_are_watched():
    schedule = Schedule(Plan(every=3, steps=(2, 20)))
    taken = []
    for step in range(30):
        if step == 9:
            schedule.follow(Plan(preset="mix", every=2, steps=(0, None)), step=step)
        if schedule.samples(step):
            taken.append(step)
    assert taken == [2, 5, 8, 9, 11, 13, 15, 17, 19]
    assert schedule.first == 2


@given(st.integers(0, 12))
def test_ranks_that_read_more_or_fewer_sums_before_another_plan_sample_alike(read_before):
    """Sums of steps before the change may arrive on either side of it."""
    schedule = Schedule(Plan())
    taken = []
    for step in range(12):
        schedule.samples(step)
    for late in (False, True):
        if late:
            schedule.follow(Plan(), step=12)
        for step in range(12):
            if (step >= read_before) is late and schedule.counts(step):
                schedule.spent(plain_s=0.0, sampled_s=ALLOWANCE_S, step_s=0.1)
                schedule.decide(step, interval=1)
    taken = [step for step in range(12, 200) if schedule.samples(step)]
    assert taken == list(range(12, 200))


def test_steps_that_are_not_watched_tell_of_a_changed_plan_now_and_then():
    schedule = Schedule(Plan(steps=(15, 32)))
    assert [step for step in range(60) if schedule.beats(step)] == [0, 10, 40, 50]


def test_a_job_that_goes_on_measures_its_first_step():
    schedule = Schedule(Plan(every=5, params_every=50), first=412)
    steps = range(412, 470)
    assert [step for step in steps if schedule.samples(step)] == list(range(412, 470, 5))
    assert [step for step in steps if schedule.digests_params(step)][:16] == list(range(412, 428))
    assert Schedule(Plan(steps=(500, 510)), first=412).first == 500


@given(st.integers(0, 500), st.integers(1, 100))
def test_a_difference_is_dated_to_an_eighth_of_its_age(first, params_every):
    schedule = Schedule(Plan(params_every=params_every), first=first)
    looks = [step for step in range(first, first + 600) if schedule.digests_params(step)]
    assert looks[0] == first
    for before, after in itertools.pairwise(looks):
        assert after - before <= max(1, min((after - first) // 8, params_every))
    late = [step for step in looks if step - first >= 16 * params_every]
    assert late == [step for step in range(first + 16 * params_every, first + 600) if step % params_every == 0]


def test_replicas_are_digested_often_again_once_all_ranks_heard_of_a_finding():
    schedule = Schedule(Plan())
    assert not all(schedule.digests_params(step) for step in range(200, 210))
    schedule.look_again(200)
    assert all(schedule.digests_params(step) for step in range(200, 200 + DIGESTED_FIRST))
    for step in range(300, 300 + 1000 * LOOKS_AGAIN, 100):  # a finding that comes and goes
        schedule.look_again(step)
    assert sum(schedule.digests_params(step) for step in range(9000, 9100)) == 100 // Plan().params_every
