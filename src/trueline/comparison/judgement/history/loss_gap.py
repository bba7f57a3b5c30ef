"""Does the gap between the losses of two runs grow faster than chaos explains?

Training is chaotic: runs that differ in a last bit diverge as well, sooner or later, and no error model says by how
much. It is measured on Runs that should agree (``calibrate``). With R of them and the reference, all exchangeable, and
the run as one more, each of these n is compared with the others in the same way: at step s its gap is the distance of
its loss from the median of theirs, and their spread the largest gap that any of them has had by then, at least two
units in the last place of float32. The largest ratio of gap to spread over all steps is the run's *excess*. If the run
is like the others, it has the largest excess of all n with a probability of 1/n, whatever chaos does; no evidence
however strong makes that number smaller. So the run is reported only where its excess is more than ``ALLOWED`` = 2
times that of any other: as ``first-divergence``, a warning, with the first such step, and with that probability as its
``false_alarm_rate``. That the factor makes reports of healthy runs rarer still is measured (``benchmarks/compare``) and
not proven.

Without such Runs nothing bounds the effect of chaos. Only the growth of the gap can be described.

Letters: R calibrated runs, T steps, n runs in all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.judge.compared_ranks import Floats, data_parallel_ranks, numbers
from trueline.schema.files.tolerance import Tolerance
from trueline.schema.finding import Finding
from trueline.store.reader import Run

Curve = Mapping[int, float]
"""The loss by step, where it was recorded and finite."""

ALLOWED = 2.0
"""Times the largest excess of the calibrated Runs that a run may have."""

LEAST_SPREAD = 4 * UNIT_ROUNDOFF["float32"]
"""The least relative spread of losses that is assumed: two units in the last place of float32, in which losses are
recorded. That the losses of some runs agree to the last bit at first says little."""

FIRST_STEP = 0.01
"""Nothing is learned yet at step 0, so a larger relative difference of the losses there is not chaos."""

FEWEST_STEPS = 16
"""Common steps, at least, for a statement on how the gap grows."""

GROWTH_RATIO = 10.0
"""Ratio of the last gap to the first, at least, for a gap that is called growing."""


@dataclass(frozen=True)
class LossGap:
    """The divergence of the loss of a run from those of ``num_runs`` others: its excess, the largest of theirs, the
    first step at which it exceeds what is allowed (None: it does not), and the probability that a run like them has an
    excess as large, which is 1/(num_runs + 1) at least.
    """

    excess: float
    usual: float
    num_runs: int
    chance: float
    first_step: int | None


def loss_curve(run: Run) -> dict[int, float]:
    """The mean loss of the workers by step, where all that recorded one have it; empty where none was recorded."""
    ranks = data_parallel_ranks(run)
    if not ranks:
        return {}
    loss_T = numbers(run, "loss", ranks)[0].mean(axis=1)
    return {int(step): float(loss) for step, loss in zip(run.steps, loss_T, strict=True) if math.isfinite(loss)}


def losses_by_rank(run: Run, steps: Collection[int]) -> dict[tuple[int, int | None], float]:
    """The recorded loss at ``steps`` by step and rank, and by step and None the mean of workers."""
    if not len(run.steps) or not run.ranks:
        return {}
    means = loss_curve(run)
    losses: dict[tuple[int, int | None], float] = {(step, None): means[step] for step in steps if step in means}
    values_TN, measured_TN = numbers(run, "loss", run.ranks)
    for at in np.flatnonzero(np.isin(run.steps, list(steps))).tolist():
        for rank, loss, is_measured in zip(run.ranks, values_TN[at], measured_TN[at], strict=True):
            if is_measured and math.isfinite(loss):
                losses[int(run.steps[at]), rank] = float(loss)
    return losses


def loss_ratio(run: Run, ref: Run, step: int, rank: int | None) -> float | None:
    """The recorded loss of the run over that of the reference; None where either has none, or the latter is 0."""
    loss, ref_loss = (losses_by_rank(side, [step]).get((step, rank)) for side in (run, ref))
    return loss / ref_loss if loss is not None and ref_loss else None


def judge_losses(
    run: Curve, ref: Curve, tolerance: Tolerance | None, *, has_errors: bool
) -> tuple[list[Finding], list[str]]:
    """Findings and notes on how the losses part. ``has_errors``: there are errors already, whose consequence a gap may
    be; it is then a note and no finding.
    """
    common = sorted(set(run) & set(ref))
    if not common:
        return [], []
    notes = _on_first_step(common[0], run, ref)
    if tolerance is None or not tolerance.losses:
        return [], notes + _on_growth(common, run, ref)
    gap = loss_gap_of(run, ref, [_curve(tolerance.loss_steps, losses) for losses in tolerance.losses])
    if gap is None:
        return [], notes
    finding = _finding(gap)
    return ([], [*notes, finding.claim]) if has_errors else ([finding], notes)


def loss_gap_of(run: Curve, ref: Curve, calibrated: Sequence[Curve]) -> LossGap | None:
    """The gap of the run to the calibrated ones and the reference; None without a step that all have."""
    # The reference may be one of the calibrated Runs.
    peers = list(calibrated) if any(_is_same_run(curve, ref) for curve in calibrated) else [*calibrated, ref]
    steps = sorted(set(run).intersection(*peers))
    if not steps:
        return None
    losses_NT = np.array([[curve[step] for step in steps] for curve in (run, *peers)])
    times_NT = np.array([_times_spread(losses_NT, index) for index in range(len(losses_NT))])
    excess_N = times_NT.max(axis=1)
    usual = float(excess_N[1:].max())
    beyond_T = times_NT[0] > ALLOWED * usual
    return LossGap(
        excess=float(excess_N[0]),
        usual=usual,
        num_runs=len(peers),
        chance=float((excess_N >= excess_N[0]).sum() / len(excess_N)),
        first_step=steps[int(np.argmax(beyond_T))] if beyond_T.any() else None,
    )


def _times_spread(losses_NT: Floats, index: int) -> Floats:
    """[T] the gap of one run over the spread of the others."""
    # A run must not pull the median that it is measured by.
    others_NT = np.delete(losses_NT, index, axis=0)
    median_T = np.median(others_NT, axis=0)
    gap_T = np.abs(losses_NT[index] - median_T)
    # What the spread has reached once it may reach again, though it is small at some step by chance.
    spread_T = np.maximum.accumulate(np.abs(others_NT - median_T).max(axis=0))
    least_T = LEAST_SPREAD * np.maximum(np.abs(median_T), np.finfo(np.float64).tiny)
    return gap_T / np.maximum(spread_T, least_T)


def _curve(steps: Sequence[int], losses: Sequence[float | None]) -> dict[int, float]:
    return {step: loss for step, loss in zip(steps, losses, strict=True) if loss is not None}


def _is_same_run(curve: Curve, ref_curve: Curve) -> bool:
    """True where two curves are of one run: equal at all their common steps."""
    common = curve.keys() & ref_curve.keys()
    return bool(common) and all(curve[step] == ref_curve[step] for step in common)


def _finding(gap: LossGap) -> Finding:
    least = 1 / (gap.num_runs + 1)
    rate = (
        f"among {gap.num_runs + 1} Runs that agree, one is as far off with a probability of {gap.chance:.0%}, and "
        f"so few Runs cannot show less than {least:.0%}"
    )
    peers_text = f"of the {gap.num_runs} Runs that should agree none is more than {gap.usual:.2g} times"
    measured = f"it is up to {gap.excess:.2g} times as far from the others as they are from each other; {peers_text}"
    if gap.first_step is None:
        return Finding(
            code="explained-by-rounding",
            severity="info",
            claim=f"The loss diverges no faster than chaos explains: {measured}.",
            measured=gap.excess,
            expected=gap.usual,
            unit="times the spread of the others",
            evidence={"chance": gap.chance},
        )
    return Finding(
        code="first-divergence",
        severity="warning",
        claim=f"The loss diverges faster than chaos explains, from step {gap.first_step} on: {measured}; {rate}.",
        step_first=gap.first_step,
        measured=gap.excess,
        expected=gap.usual,
        unit="times the spread of the others",
        false_alarm_rate=gap.chance,
        evidence={"chance": gap.chance},
        next=(
            f"Record single steps up to step {gap.first_step} in both runs, and compare them: the first that differs "
            "by more than rounding shows where.",
        ),
    )


def _on_first_step(step: int, run: Curve, ref: Curve) -> list[str]:
    rel = _gap(run[step], ref[step])
    if step or rel <= FIRST_STEP:
        return []
    # A factor reads better than a share above 1, as where a loss is a sum and no mean.
    times = rel >= 1 and ref[step]
    differs = f"is {run[step] / ref[step]:.4g} times the reference's" if times else f"differs by {rel:.2g} of it"
    return [
        f"The loss that is trained, mean over ranks, {differs} at step 0 already. No update has gone before, so chaos "
        "has not made it: the computation, the samples, the weights or the scale of the loss differ."
    ]


def _on_growth(common: Sequence[int], run: Curve, ref: Curve) -> list[str]:
    """The growth of the gap, from the median of the first eighth of the steps that have one to that of the last."""
    gaps = [(step, gap) for step in common if (gap := _gap(run[step], ref[step])) > 0]
    if len(gaps) < FEWEST_STEPS:
        return []
    # Medians of several steps: the gap at a single one may be nearly 0 by chance.
    eighth = len(gaps) // 8
    first, last = gaps[:eighth], gaps[-eighth:]
    before, after = (float(np.median([gap for _, gap in part])) for part in (first, last))
    num_steps = float(np.mean([step for step, _ in last]) - np.mean([step for step, _ in first]))
    if after < GROWTH_RATIO * before:
        return []
    doubled = num_steps * math.log(2) / math.log(after / before)
    return [
        f"The relative gap between the mean losses of all ranks grows from {before:.1e} to {after:.1e}: it doubles "
        f"every {doubled:.2g} steps. Whether that is faster than chaos cannot be told without Runs that should agree: "
        "measure some with `trueline calibrate`, and pass the file that it writes with --tolerance."
    ]


def _gap(loss: float, ref_loss: float) -> float:
    return abs(loss - ref_loss) / abs(ref_loss) if ref_loss else (math.inf if loss else 0.0)
