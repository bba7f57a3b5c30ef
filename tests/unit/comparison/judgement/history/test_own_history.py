"""Calls against their own past: what is told, what is not, and how often of pairs in which nothing is wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from trueline.comparison.expect.expectation import Expectation
from trueline.comparison.judgement.history.own_history import (
    FALSE_ALARMS,
    FEWEST,
    LEAST_MEAN,
    HistoryOutlier,
    history_outliers,
)
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.judgement.values.distance import Distance
from trueline.judge.stats.peaks_over_threshold import log_probability
from trueline.schema.site import Site

OWN = 1e-7
"""What a call of these steps rounds."""
NUM_CALLS = 40
Table = Any


def value(step: int, call: int, *, api: str = "torch.nn.functional.linear", numel: int = 64, phase: str = "fwd") -> Any:
    stats = SimpleNamespace(numel=numel, min=-3.0, max=3.0, rms=1.0, projections=None)
    site = Site(step, 0, 0, phase, f"calls.{call}", 0, "out0")
    return SimpleNamespace(site=site, api=api, dtype="float32", shape=(numel,), stats=stats, kind="op", ranks=(0,))


def step_of(step: int, rels: Any, *, rank: int | None = 0, unmeasured: tuple[int, ...] = (), **told: Any) -> Step:
    """A chain of calls, each made from what the one before returned, and of the values ``unmeasured``; the first value
    is a given one.
    """
    rows: list[Compared] = []
    for place, rel in enumerate(rels):
        origin = "call" if place else "given"
        sources = (place - 1, *unmeasured) if place else ()
        expectation = Expectation(1.0, OWN, cast(Any, origin), sources=sources)
        side = value(step, place, **told)
        rows.append(Compared(place, place, side, side, "within", Distance(False, float(rel), "tensor"), expectation))
    return Step(cast(Any, SimpleNamespace(path="runs/a")), step, rank, cast(Any, None), rows)


def healthy(seed: int, *, num_steps: int = 8) -> Table:
    """[S, K] relative differences that grow from step to step, and along the chain by what each call makes of them."""
    draw = np.random.default_rng(seed)
    gain_K = np.exp(draw.normal(0, 0.5, NUM_CALLS))
    rows = []
    for step in range(num_steps):
        ratio_K = gain_K * np.exp(draw.normal(0, 0.4, NUM_CALLS))
        ratio_K[0] = 1e-5 * 2.0**step
        rows.append(np.minimum(np.cumprod(ratio_K), 1.0))
    return np.array(rows)


def changed(step: Step, call: int, *, api: str = "", how: str = "", **stats: float) -> Step:
    """``step``, with another function, or other statistics, of what a call returns."""
    row = step.rows[call]
    assert row.run_value is not None
    side = SimpleNamespace(**{**vars(row.run_value), **({"api": api} if api else {})})
    side.stats = SimpleNamespace(**{**vars(side.stats), **stats})
    rows = [*step.rows[:call], replace(row, run_value=side, ref_value=side), *step.rows[call + 1 :]]
    return replace(step, rows=rows)


def outliers_of(rels_SK: Table, **settings: Any) -> list[HistoryOutlier]:
    return history_outliers([step_of(step, rels, **settings) for step, rels in enumerate(rels_SK)])


def faulty(seed: int = 0, *, call: int = 25, since: int = 4) -> Table:
    """From a step on one call adds a difference of a tenth, which what comes after passes on."""
    rels_SK = healthy(seed)
    passed_on = rels_SK[since:, call:] / rels_SK[since:, call : call + 1]
    rels_SK[since:, call:] = 0.1 * np.minimum(passed_on, 9.0)
    return rels_SK


def test_the_call_that_adds_more_than_ever_is_told_at_that_step() -> None:
    first = outliers_of(faulty())[0]
    assert (first.at, first.position, first.num_steps) == (4, 25, 4)
    assert first.false_alarm_rate < FALSE_ALARMS
    assert first.expected < 0.01


def test_healthy_pairs_are_told_of_less_often_than_stated() -> None:
    num_told = sum(bool(outliers_of(healthy(seed))) for seed in range(100))
    assert num_told <= 5  # 1 is expected at most; a Poisson variable of mean 1 exceeds 5 once in 1,700


def test_differences_that_come_with_the_inputs_are_not_told() -> None:
    rels_SK = healthy(0)
    rels_SK[4:] = np.minimum(1000 * rels_SK[4:], 1.0)
    assert outliers_of(rels_SK) == []


def test_rounding_that_begins_late_is_not_told() -> None:
    rels_SK = np.zeros((8, NUM_CALLS))
    rels_SK[4:, 20:] = 3 * OWN
    assert outliers_of(rels_SK) == []


def test_what_rounds_is_the_least_that_counts() -> None:
    rels_SK = np.full((8, NUM_CALLS), 1e-12)
    rels_SK[4:, 20:] = 1e-9
    assert outliers_of(rels_SK) == []


@pytest.mark.parametrize("of", [{"numel": 8}, {"api": "torch.Tensor.transpose"}, {"phase": "opt"}])
def test_small_values_moved_values_and_updates_are_not_judged(of: dict[str, Any]) -> None:
    assert outliers_of(faulty()) != []
    assert outliers_of(faulty(), **of) == []


def test_calls_of_which_not_all_inputs_were_measured_are_not_judged() -> None:
    assert outliers_of(faulty(), unmeasured=(1000,)) == []


def test_beside_masks_it_is_not_known_what_a_call_took() -> None:
    steps = [changed(step_of(s, rels), 24, min=-1e9) for s, rels in enumerate(faulty())]
    assert 25 not in {outlier.position for outlier in history_outliers(steps)}


def test_terms_that_cancel_in_a_sum_count_as_much_as_they_are_larger() -> None:
    """From a step on, a call adds up terms a million times as large as their sum, of which rounding leaves as much."""
    rels_SK = faulty(call=25)
    steps = [step_of(s, rels) for s, rels in enumerate(rels_SK)]
    cancelling = [changed(changed(step, 25, api="torch.Tensor.sub"), 24, rms=1e6) for step in steps[4:]]
    assert 25 in {outlier.position for outlier in history_outliers(steps)}
    assert 25 not in {each.position for each in history_outliers([*steps[:4], *cancelling])}


def test_a_gradient_that_is_what_rounding_left_of_its_addends_is_not_judged_by_its_size() -> None:
    """A bias whose gradient adds up 48 rows that cancel, from a step on down to what their rounding leaves."""
    steps = [step_of(s, rels, phase="bwd") for s, rels in enumerate(faulty(call=25))]
    addends = [changed(step, 24, numel=48 * 64, rms=1e6) for step in steps]
    larger = [changed(step, 24, numel=48 * 64) for step in steps]
    assert 25 in {outlier.position for outlier in history_outliers(larger)}
    assert 25 not in {each.position for each in history_outliers(addends)}


def test_differences_that_projections_did_not_show_are_no_history() -> None:
    """What a call returns seems hardly to differ up to a step, and there three times as much as what it takes."""
    rels_SK = 100 * healthy(0)
    rels_SK[:4, 25] = 1e-2 * rels_SK[:4, 24]
    rels_SK[4:, 25] = 3 * rels_SK[4:, 24]

    def found(how: str) -> set[int]:
        steps = [step_of(s, rels) for s, rels in enumerate(rels_SK)]
        rows = [[replace(row, distance=Distance(False, row.distance.rel, how)) for row in s.rows] for s in steps]
        measured = [replace(s, rows=r) for s, r in zip(steps, rows, strict=True)]
        return {outlier.position for outlier in history_outliers(measured)}

    assert (25 in found("tensor"), 25 in found("statistics")) == (True, False)


def test_steps_at_which_all_was_equal_are_no_history() -> None:
    """A sum that cancels makes much of the first difference that it is given."""
    rels_SK = healthy(0)
    rels_SK[:4] = 0.0
    rels_SK[4:, 20] = 0.9
    assert [outlier for outlier in outliers_of(rels_SK) if outlier.at == 4] == []


def test_values_that_are_seen_again_are_not_judged_again() -> None:
    steps = [step_of(s, rels) for s, rels in enumerate(faulty())]
    once = history_outliers(steps)
    for step in steps:
        again = [replace(row, position=row.position + NUM_CALLS) for row in step.rows]
        step.rows.extend(again)
    assert once == history_outliers(steps)


def test_ranks_have_pasts_of_their_own() -> None:
    steps = [step_of(s, rels, rank=0) for s, rels in enumerate(healthy(1))]
    steps += [step_of(s, rels, rank=1) for s, rels in enumerate(faulty())]
    outliers = history_outliers(steps)
    assert {steps[outlier.at].rank for outlier in outliers} == {1}
    assert steps[outliers[0].at].step == 4


def test_the_rate_is_that_of_a_brute_force() -> None:
    rels_SK = faulty()
    found = {(outlier.at, outlier.position): outlier.false_alarm_rate for outlier in outliers_of(rels_SK)}
    log_SK = np.array([[_added(rels, k) for k in range(1, NUM_CALLS)] for rels in rels_SK])
    probabilities: dict[tuple[int, int], float] = {}
    for s in range(1, len(rels_SK)):
        pool = [_jump(log_SK[:, k], other, [o for o in range(s) if o != other]) for k in range(NUM_CALLS - 1)
                for other in range(1, s) if s > 1]  # fmt: skip
        for k in range(NUM_CALLS - 1):
            jump = _jump(log_SK[:, k], s, list(range(s)))
            if len(pool) >= FEWEST:
                probabilities[s, k + 1] = log_probability(jump, np.array(pool))
            pool.append(jump)
    rates = {place: 2 * len(probabilities) * math.exp(log_p) for place, log_p in probabilities.items()}
    assert (4, 25) in found
    for place, rate in found.items():
        # Where the ten largest jumps are closer together than LEAST_MEAN, the brute force takes the rarer ones.
        assert rates[place] <= rate * (1 + 1e-9)
    assert set(found) <= {place for place, rate in rates.items() if rate < FALSE_ALARMS}
    assert LEAST_MEAN > 0


def _added(rels: Any, k: int) -> float:
    own = max(OWN, 0.0)
    return math.log(math.sqrt(rels[k] ** 2 + own**2) / math.sqrt(rels[k - 1] ** 2 + own**2))


def _jump(log_S: Any, at: int, others: list[int]) -> float:
    usual = math.sqrt(sum(math.exp(2 * log_S[other]) for other in others) / len(others))
    return float(log_S[at] - math.log(usual))
