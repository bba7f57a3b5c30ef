"""Whether losses part faster than those of Runs that should agree: by ranks of curves, and in words."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.comparison.test_calibrate import record

import trueline
from trueline.comparison.judgement.history.loss_gap import ALLOWED, judge_losses, loss_curve, loss_gap_of
from trueline.schema.files.tolerance import Tolerance
from trueline.store.reader import Run

NUM_STEPS = 60


def curves(seed: int, num: int, *, parts: float = 1.0) -> list[dict[int, float]]:
    """Losses of runs that part chaotically, the first by so many times as much."""
    draw = np.random.default_rng(seed)
    falling_T = 4 * np.exp(-np.arange(NUM_STEPS) / 40)
    grown_T = 1e-6 * np.exp(np.arange(NUM_STEPS) / 8)
    gaps_NT = np.cumsum(draw.standard_normal((num, NUM_STEPS)), axis=1) * grown_T
    gaps_NT[0] *= parts
    return [dict(enumerate((falling_T + gap_T).tolist())) for gap_T in gaps_NT]


def tolerance_of(calibrated: list[dict[int, float]]) -> Tolerance:
    return Tolerance(
        runs=tuple(map(str, range(len(calibrated)))),
        pairs=1,
        how="tensor",
        steps=(0,),
        kinds={},
        sites={},
        loss_steps=tuple(range(NUM_STEPS)),
        losses=tuple(tuple(curve.values()) for curve in calibrated),
    )


def test_a_run_like_the_others_has_the_largest_excess_as_often_as_any() -> None:
    largest = told = 0
    for seed in range(400):
        run, ref, *calibrated = curves(seed, 6)
        drift = loss_gap_of(run, ref, calibrated)
        assert drift is not None
        assert drift.num_runs == 5
        largest += drift.excess > drift.usual
        told += drift.first_step is not None
        assert (drift.chance == pytest.approx(1 / 6)) == (drift.excess > drift.usual)
    noise = 3 * math.sqrt(400 * 1 / 6 * 5 / 6)  # three standard deviations of a binomial
    assert abs(largest - 400 / 6) < noise
    assert told < largest


def test_excess_is_that_of_a_brute_force() -> None:
    run, ref, *calibrated = all_ = curves(3, 5)
    excess = []
    for own in all_:
        others, spread, most = [each for each in all_ if each is not own], 0.0, 0.0
        for step in range(NUM_STEPS):
            middle = float(np.median([each[step] for each in others]))
            spread = max(spread, *(abs(each[step] - middle) for each in others))
            most = max(most, abs(own[step] - middle) / max(spread, 2.0**-22 * middle))
        excess.append(most)
    drift = loss_gap_of(run, ref, calibrated)
    assert drift is not None
    assert (drift.excess, drift.usual) == (pytest.approx(excess[0]), pytest.approx(max(excess[1:])))


def test_a_run_that_parts_faster_is_told_from_the_step_on() -> None:
    run, ref, *calibrated = curves(0, 6)
    for step in range(30, NUM_STEPS):
        run[step] += 0.5
    (finding,), notes = judge_losses(run, ref, tolerance_of(calibrated), has_errors=False)
    assert (finding.code, finding.severity, finding.step_first) == ("first-divergence", "warning", 30)
    assert finding.measured is not None
    assert finding.expected is not None
    assert finding.measured > ALLOWED * finding.expected
    assert finding.false_alarm_rate == pytest.approx(1 / 6)
    assert "with a probability of 17%, and so few Runs cannot show less than 17%" in finding.claim
    assert notes == []
    assert judge_losses(run, ref, tolerance_of(calibrated), has_errors=True) == ([], [finding.claim])


def test_a_run_within_chaos_is_said_to_be() -> None:
    run, ref, *calibrated = curves(1, 6)
    (finding,), _ = judge_losses(run, ref, tolerance_of(calibrated), has_errors=False)
    assert (finding.code, finding.severity) == ("explained-by-rounding", "info")


def test_last_bits_of_the_first_losses_are_no_drift() -> None:
    run, ref, *calibrated = ({0: 3.0, 1: 3.0 + 1e-4 * number} for number in range(5))
    run[0] += 2.0**-22
    drift = loss_gap_of(run, ref, calibrated)
    assert drift is not None
    assert drift.first_step is None


def test_a_reference_among_the_calibrated_counts_once() -> None:
    run, *calibrated = curves(2, 5)
    drift = loss_gap_of(run, calibrated[2], calibrated)
    assert drift is not None
    assert drift.num_runs == 4
    assert loss_gap_of(run, {}, [{0: 1.0}, {1: 1.0}]) is None


def test_without_such_runs_only_the_growth_is_told() -> None:
    ref = dict.fromkeys(range(80), 2.0)
    run = {step: 2.0 * (1 + 1e-7 * 2 ** (step / 10)) for step in range(80)}
    findings, (note,) = judge_losses(run, ref, None, has_errors=False)
    assert findings == []
    assert "it doubles every 10 steps" in note
    assert "cannot be told without Runs that should agree" in note
    constant = dict.fromkeys(range(80), 2.0 * (1 + 1e-07))
    assert judge_losses(constant, ref, None, has_errors=False) == ([], [])
    assert judge_losses({}, ref, None, has_errors=False) == ([], [])


def test_a_first_step_that_is_far_off_is_no_chaos() -> None:
    _, (note,) = judge_losses({0: 1.02}, {0: 1.0}, None, has_errors=False)
    assert note.startswith("The loss that is trained, mean over ranks, differs by 0.02 of it at step 0 already.")
    assert judge_losses({0: 1.005}, {0: 1.0}, None, has_errors=False) == ([], [])
    assert judge_losses({5: 1.5}, {5: 1.0}, None, has_errors=False) == ([], [])


def test_a_tolerance_keeps_the_losses_and_compare_uses_them(tmp_path: Path) -> None:
    nudges: dict[str, Any] = {"a": 1e-6, "b": -1e-6, "c": 2e-6, "like": 1.5e-6}
    paths = {name: record(tmp_path / name, nudge=nudge) for name, nudge in nudges.items()}
    measured = trueline.calibrate([paths["a"], paths["b"], paths["c"]])
    assert measured.loss_steps == (0, 1)
    assert measured.losses[0] == tuple(loss_curve(Run(paths["a"])).values())
    like = trueline.compare(paths["like"], paths["a"], tolerance=measured)
    assert like.exit_code == 0
    assert any(finding.claim.startswith("The loss diverges no faster") for finding in like.findings)
    one = trueline.compare(paths["like"], paths["a"], tolerance=measured, steps=[0])
    assert not any("The loss" in finding.claim for finding in one.findings)
