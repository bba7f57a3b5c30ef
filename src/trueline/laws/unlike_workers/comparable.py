"""The workers that are meant to be equal, and the steps at which their values, or per-sample losses, can be compared.

T steps, N workers, R of the steps, M of the workers, B bets.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from trueline.judge.stats import permutation
from trueline.judge.stats.alarms import Alarm, alarm_of
from trueline.judge.stats.autocorrelation import Dependence, dependence_of, longest
from trueline.judge.stats.exchangeability import Floats, Ints
from trueline.judge.stats.memoize import memoized
from trueline.laws.unlike_workers.series import WorkerSeries

SeriesName = Literal["loss", "log_norm", "cosine", "group_log_norm", "group_cosine", "tokens"]
"""The series whose dependence is measured, by their names in ``WorkerSeries``."""

NUM_SAMPLE_DETECTORS = 5
"""Detectors of a declared group that the budget's share of sample losses is split over: batches too close together, and
agreement by place (``dispersion-low``); batches too far apart, and persistent differences in the loss and in the
gradient norm (``dispersion-high``)."""

FIRST_STEPS = 4096
"""Steps of which the dependence of workers is measured, twice, four times, ... as many as soon as there are so many: so
that it is not another at each further step. The first of them alone tell how many steps are enough: of more a further
one would change what was enough before."""

_ALL_BETS = permutation.LOW_BETS + permutation.HIGH_BETS


def comparable_groups(series: WorkerSeries) -> list[tuple[int, ...]]:
    """Positions of each declared group that has two workers or more; all workers where none is declared."""
    declared = series.declared or (tuple(range(series.num_workers)),)
    return [members for members in declared if len(members) > 1]


def num_sample_detectors(series: WorkerSeries) -> int:
    """The number of detectors that share the budget's share of sample losses."""
    return NUM_SAMPLE_DETECTORS * max(len(comparable_groups(series)), 1)


def compared_among(series: WorkerSeries, values_TN: Floats, members: tuple[int, ...]) -> tuple[Ints, Floats]:
    """Indices [R] of the steps at which two of ``members`` can be compared and not all are equal, and their values
    [R, M]. Whether a step is left out depends on its unordered values alone, and so costs no validity.
    """
    declared = series.declared or (tuple(range(series.num_workers)),)
    values_TM = series.compared(values_TN)[declared.index(members)][:, list(members)]
    low = np.min(np.where(np.isfinite(values_TM), values_TM, np.inf), axis=1)
    high = np.max(np.where(np.isfinite(values_TM), values_TM, -np.inf), axis=1)
    rows = np.flatnonzero(high > low).astype(np.int64)
    return rows, values_TM[rows]


def dependence_among(
    series: WorkerSeries, series_name: SeriesName, members: tuple[int, ...], group: int | None = None
) -> Dependence:
    """The dependence of a series of ``members`` (one declared group), or of one parameter group of it.

    Its cause are the data, which show in all that is measured on them: so it is the longest of their losses, gradient
    norms and directions. Of two workers a fault that does not come at once may look like autocorrelation, so there each
    series answers for itself, as numbers of tokens always do.
    """
    if series_name == "tokens" or len(members) == 2:
        return _dependence_of_series(series, series_name, members, group)
    shared_series: tuple[SeriesName, ...] = ("loss", "log_norm", "cosine")
    return longest(_dependence_of_series(series, name, members) for name in shared_series)


def measured_steps(num_steps: int) -> int:
    """The number of first steps, out of ``num_steps``, of which the dependence is measured."""
    if num_steps < FIRST_STEPS:
        return num_steps
    # The largest power of two times FIRST_STEPS that is no more than there are.
    return FIRST_STEPS << ((num_steps // FIRST_STEPS).bit_length() - 1)


@memoized
def _dependence_of_series(
    series: WorkerSeries, series_name: SeriesName, members: tuple[int, ...], group: int | None = None
) -> Dependence:
    series = series.first(measured_steps(len(series.steps)))
    declared = series.declared or (tuple(range(series.num_workers)),)
    values_TN = getattr(series, series_name) if group is None else getattr(series, series_name)[:, :, group]
    if series_name == "tokens":  # they differ by a factor, losses by a shift
        values_TN = np.log(np.where(values_TN > 0, values_TN, np.nan))
    return dependence_of(series.compared(values_TN)[declared.index(members)][:, list(members)])


def sample_losses_of(series: WorkerSeries, members: tuple[int, ...]) -> permutation.SampleLosses:
    """The per-sample losses of ``members``, by index of the step, at which none of them reads again what only it has
    read before (fixed shards, from the second epoch on; ``WorkerSeries.allowance``): the same deal again is no new
    evidence.
    """
    fresh_T = np.max(series.allowance[:, list(members)], axis=1) <= 0
    return {t: tuple(arrays[n] for n in members) for t, arrays in series.sample_losses.items() if fresh_T[t]}


def sample_losses_alarm(
    losses_by_step: permutation.SampleLosses,
    steps_T: Ints,
    *,
    bets: tuple[float, ...],
    threshold: float,
    dependence: Dependence,
    allowance: float = permutation.ALLOWANCE,
) -> tuple[Alarm, Ints] | None:
    """The alarm of the detector that re-deals sample losses, and the indices of the steps that its own indices count:
    those with information. None where it stays below ``threshold``. ``dependence`` is that of the workers' losses.
    """
    return _alarm_with_rows(
        permutation.log_e_values(losses_by_step, steps_T, bets=bets, allowance=allowance) / dependence.ratio, threshold
    )


def all_samples_alarm(
    series: WorkerSeries, members: tuple[int, ...], *, bets: tuple[float, ...], threshold: float
) -> tuple[Alarm, Ints] | None:
    """The alarm of the detector that re-deals all sample losses of ``members``, with the indices of its steps."""
    return _alarm_with_rows(_log_e_of_all_bets(series, members)[:, [_ALL_BETS.index(bet) for bet in bets]], threshold)


@memoized
def _log_e_of_all_bets(series: WorkerSeries, members: tuple[int, ...]) -> Floats:
    """[T, B] logs of e-values of all bets: several checks ask for some of them."""
    log_e_TB = permutation.log_e_values(sample_losses_of(series, members), series.steps, bets=_ALL_BETS)
    return log_e_TB / dependence_among(series, "loss", members).ratio


def _alarm_with_rows(log_e_TB: Floats, threshold: float) -> tuple[Alarm, Ints] | None:
    rows = np.flatnonzero(np.any(log_e_TB != 0, axis=1)).astype(np.int64)
    alarm = alarm_of(log_e_TB[rows], threshold=threshold)
    return None if alarm is None else (alarm, rows)
