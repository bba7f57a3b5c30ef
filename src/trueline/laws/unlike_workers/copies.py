"""Workers that compute on the same samples: agreement place by place, pairs that stay close, all too close together.

Each has an e-detector with its share of the false-alarm budget (``permutation``, ``closest_pairs``); what is reported
passed a filter of its size besides, which only ever makes findings fewer. Letters: T steps, R of them, N workers, M of
them, C columns, P pairs, K of them, B bets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trueline.judge.stats import closest_pairs, permutation
from trueline.judge.stats.alarm_budget import AlarmBudget, Statistic
from trueline.judge.stats.alarms import Alarm, alarm_of, steps_needed
from trueline.judge.stats.autocorrelation import Dependence
from trueline.judge.stats.change_point import alarm_onset
from trueline.judge.stats.exchangeability import Floats, Ints
from trueline.judge.stats.memoize import memoized
from trueline.laws.data_split.consumed import common_share
from trueline.laws.unlike_workers.comparable import (
    all_samples_alarm,
    comparable_groups,
    compared_among,
    dependence_among,
    num_sample_detectors,
    sample_losses_alarm,
    sample_losses_of,
)
from trueline.laws.unlike_workers.outliers import decided_outliers
from trueline.laws.unlike_workers.series import WorkerSeries
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import counted

MAX_PAIRED_WORKERS = 64
"""Workers of a group up to which pairs are looked at: their number, and the time, grows with the square."""

CLOSE = 0.5
"""Largest distance of a pair, in that to other workers, with which it is named: a quarter of the variance is then its
own. The bound on false alarms does not rest on it."""

_CHANCE_ERRORS = 4.0
"""Standard errors (1/sqrt of the number of places) that a correlation exceeds for its two workers to be named."""

_LEAST_CORRELATION = 0.3
"""Correlation place by place with which workers are named: with dropout noise 1.5 times as large as the differences
between samples, copies still have it. Dropout masks that are equal on all workers, on different samples, leave some."""

_MAX_ALARMED = 256
"""Pairs of a statistic that are looked at again; where all workers differ for good, many pairs are close for good."""

BY_PLACE, AS_WHOLE = "losses of parts, place by place", "losses of parts, as a whole"
EQUAL_STEPS = 3
"""Steps of bitwise equal, changing, finely resolved losses that are no chance."""

PAIR_STATISTICS = ("losses", "gradient norms", "directions", "losses, norms and directions together")


@dataclass(frozen=True)
class CopySet:
    """Workers [ranks] that are too close, how close and since when; steps are optimizer steps.

    ``first`` is a change point, ``onset_interval`` the lowest and highest step that it may be (95 %).
    ``suspect_ranks`` are the other ranks, where there are too few of them to exclude that these are faulty.
    """

    ranks: tuple[int, ...]
    statistic: str
    measured: float
    first: int
    crossed: int
    last: int
    alarm: Alarm
    false_alarm_rate: float
    interval: tuple[float, float] | None = None
    onset_interval: tuple[int, int] = (0, 0)
    suspect_ranks: tuple[int, ...] = ()


@memoized
def copies_among(series: WorkerSeries, budget: AlarmBudget, members: tuple[int, ...]) -> tuple[CopySet, ...]:
    """Sets of ``members`` (one declared group) that are too close; all members together where these are."""
    copy_sets = copies_by_place(series, budget, members)
    copied_ranks = {rank for copy_set in copy_sets for rank in copy_set.ranks}
    copy_sets += [
        copy_set for copy_set in copies_by_pairs(series, budget, members) if not copied_ranks & set(copy_set.ranks)
    ]
    whole_set = copies_as_whole(series, budget, members, copy_sets)
    return (whole_set,) if whole_set else tuple(copy_sets)


def copies_by_place(series: WorkerSeries, budget: AlarmBudget, members: tuple[int, ...]) -> list[CopySet]:
    """The sets of workers whose losses agree place by place, beyond what all places have in common. Not where digests
    say that they read other samples and each loss is of several: places may then be losses of different kinds, as of
    real and of made samples in a GAN, whose levels move alike on all workers.
    """
    among = num_sample_detectors(series)
    threshold = budget.log_threshold("sample-losses", among=among)
    losses_by_step = sample_losses_of(series, members)
    dependence = dependence_among(series, "loss", members)
    evidence = _place_alarm(losses_by_step, series, threshold, dependence)
    if evidence is None:
        return []
    # Places that are harder on all workers (the end of a sequence) agree without a common sample.
    without_profile = permutation.without_profile(losses_by_step)
    if _place_alarm(without_profile, series, threshold, dependence) is None:
        return []
    alarm, rows = evidence
    correlation_MM, num_places = permutation.place_correlations(
        without_profile, rows[alarm.first : alarm.last + 1].tolist()
    )
    upper = np.where(np.triu(np.ones(correlation_MM.shape, dtype=np.bool_), k=1), np.nan_to_num(correlation_MM), -1.0)
    # Copies of one cause agree about as well, so the others stay below half of the best.
    limit = max(float(upper.max(initial=0.0)) / 2, _CHANCE_ERRORS / math.sqrt(max(num_places, 1)), _LEAST_CORRELATION)
    copy_sets: list[CopySet] = []
    first_step, last_step = (int(series.steps[rows[index]]) for index in (alarm.first, alarm.last))
    are_samples = _are_samples(series, members, rows[alarm.first])
    for first, second in np.argwhere(upper >= limit).tolist():
        correlation = float(upper[first, second])
        if not are_samples and differ_by_digest(
            series, members[first], members[second], first=first_step, last=last_step
        ):
            continue
        copy_sets.append(
            _copy_set(
                series,
                budget,
                rows,
                alarm,
                ranks=(series.ranks[members[first]], series.ranks[members[second]]),
                statistic=BY_PLACE,
                measured=correlation,
                share=("sample-losses", among),
                interval=_fisher_interval(correlation, num_places),
            )
        )

    def log_odds_of(copy_set: CopySet) -> tuple[Ints, Floats]:
        positions = [members.index(series.ranks.index(rank)) for rank in copy_set.ranks]
        losses = {t: [arrays[position] for position in positions] for t, arrays in without_profile.items()}
        return rows, permutation.log_odds(permutation.by_place(losses), rows.tolist(), series.steps)

    return [
        _dated_copy_set(copy_set, series, dependence, *log_odds_of(copy_set)) for copy_set in _merged_sets(copy_sets)
    ]


def _are_samples(series: WorkerSeries, members: tuple[int, ...], row: int) -> bool:
    """True where the losses of a step are of a sample each, as far as is known how many were read."""
    sizes = [len(array) for array in series.sample_losses[int(row)]]
    return not any(sizes[worker] < series.samples[row, worker] for worker in members)


def _place_alarm(
    losses_by_step: permutation.SampleLosses, series: WorkerSeries, threshold: float, dependence: Dependence
) -> tuple[Alarm, Ints] | None:
    return sample_losses_alarm(
        permutation.by_place(losses_by_step),
        series.steps,
        bets=permutation.HIGH_BETS,
        threshold=threshold,
        dependence=dependence,
        allowance=1.0,
    )


def _fisher_interval(correlation: float, num_pairs: int) -> tuple[float, float]:
    """The 95 % interval of a correlation of ``num_pairs`` pairs (Fisher's z)."""
    z, half = math.atanh(min(correlation, 1 - 1e-12)), 1.96 / math.sqrt(max(num_pairs - 3, 1))
    return math.tanh(z - half), math.tanh(z + half)


def copies_by_pairs(series: WorkerSeries, budget: AlarmBudget, members: tuple[int, ...]) -> list[CopySet]:
    """Sets of copies, one for each set of workers that pairs connect."""
    if not is_paired(members):
        return []
    among = num_pair_detectors(series)
    threshold = budget.log_threshold("pairs", among=among)
    pairs = closest_pairs.pairs_of(len(members))
    copy_sets: list[CopySet] = []
    dependence = dependence_among(series, "loss", members)  # of three workers or more, that of all they show
    columns = pair_columns(series, members)
    for statistic, rows, values_RMC in columns:
        alarmed = _alarmed_pairs(closest_pairs.heights(values_RMC, dependence_ratio=dependence.ratio), threshold)
        outlier_rows = _outlier_rows(series, budget, members, rows, statistic) if alarmed else {}
        for p, alarm in _pair_alarms(values_RMC, alarmed, outlier_rows, threshold, dependence):
            window = slice(alarm.first, alarm.last + 1)
            measured = closest_pairs.closeness(values_RMC[window], *pairs[p])
            if measured <= CLOSE and _may_report_pair(series, members, pairs[p], rows[window]):
                first, second = pairs[p]
                ranks = (series.ranks[members[first]], series.ranks[members[second]])
                copy_set = _copy_set(
                    series,
                    budget,
                    rows,
                    alarm,
                    ranks=ranks,
                    statistic=statistic,
                    measured=measured,
                    share=("pairs", among),
                )
                # Bitwise equal values (a distance of 0) are no accident of a faulty third.
                third = tuple(series.ranks[n] for n in members if series.ranks[n] not in ranks)
                copy_sets.append(
                    replace(copy_set, suspect_ranks=third) if len(third) == 1 and measured > 0 else copy_set
                )

    def nearness_of(copy_set: CopySet) -> tuple[Ints, Floats]:
        rows, values_RMC = next(column[1:] for column in columns if column[0] == copy_set.statistic)
        own_pairs = [
            p for p, pair in enumerate(pairs) if {series.ranks[members[m]] for m in pair} <= set(copy_set.ranks)
        ]
        return rows, closest_pairs.nearness(values_RMC, own_pairs)

    return [
        _dated_copy_set(copy_set, series, dependence, *nearness_of(copy_set)) for copy_set in _merged_sets(copy_sets)
    ]


def _alarmed_pairs(heights_P: Floats, threshold: float) -> list[int]:
    """Pairs that alarm, highest first, as many as are worth a second look."""
    return [int(p) for p in np.argsort(-heights_P) if heights_P[p] >= threshold][:_MAX_ALARMED]


def _pair_alarms(
    values_RMC: Floats,
    alarmed: Sequence[int],
    outlier_rows: Mapping[int, int],
    threshold: float,
    dependence: Dependence,
) -> list[tuple[int, Alarm]]:
    """Pairs that alarm also without the other outliers; ``outlier_rows`` has by position the row from which on each is
    one.

    A worker that is far from all others takes its share of the bets with it: of N workers and one that is far, each
    other pair wins N / (N - 2) times too much at every step. Where only the pair is left there is nothing to compare
    it with, and its bets neither win nor lose.
    """
    pairs = closest_pairs.pairs_of(values_RMC.shape[1])
    by_absent: dict[frozenset[int], list[int]] = {}
    for p in alarmed:
        by_absent.setdefault(frozenset(outlier_rows) - set(pairs[p]), []).append(p)
    alarm_by_pair: dict[int, Alarm] = {}
    for absent_positions, numbers in by_absent.items():
        rest_RMC = values_RMC.copy()
        for position in absent_positions:
            rest_RMC[outlier_rows[position] :, position] = np.nan
        log_e_RKB = closest_pairs.log_e_of_pairs(rest_RMC, numbers) / dependence.ratio
        alarms = {p: alarm_of(log_e_RKB[:, k], threshold=threshold) for k, p in enumerate(numbers)}
        alarm_by_pair |= {p: alarm for p, alarm in alarms.items() if alarm is not None}
    return [(p, alarm_by_pair[p]) for p in alarmed if p in alarm_by_pair]


def _outlier_rows(
    series: WorkerSeries, budget: AlarmBudget, members: tuple[int, ...], rows: Ints, statistic: str
) -> dict[int, int]:
    """Rows from which on workers are outliers that are known by name, by their position among ``members``.

    Of three workers, the direction alone names the one that is no copy of the other two: that does not count in losses
    and norms, which two copies share and a third worker whose direction alone differs leaves as they are.
    """
    counts_all = len(members) > 3 or "directions" in statistic
    row_by_position: dict[int, int] = {}
    for outlier in decided_outliers(series, budget):
        for worker in set(outlier.workers) & set(members):
            position, row = members.index(worker), int(np.searchsorted(rows, outlier.first))
            if counts_all or outlier.quantity != "direction":
                row_by_position[position] = min(row, row_by_position.get(position, row))
    return row_by_position


def pair_columns(series: WorkerSeries, members: tuple[int, ...]) -> list[tuple[str, Ints, Floats]]:
    """The statistics of pairs: name, indices [R] of the steps that say something, and values [R, M, C]."""
    singles = [series.loss, series.log_norm, series.cosine]
    groups = [series.group_log_norm[:, :, g] for g in range(series.group_log_norm.shape[2])]
    declared = series.declared or (tuple(range(series.num_workers)),)
    group_number = declared.index(members)
    columns_by_name: list[tuple[str, Ints, Floats]] = []
    for name, columns in zip(
        PAIR_STATISTICS, [[values_TN] for values_TN in singles] + [[*singles, *groups]], strict=True
    ):
        rows = np.unique(np.concatenate([compared_among(series, values_TN, members)[0] for values_TN in columns]))
        columns_of_members = [series.compared(values_TN)[group_number][rows][:, list(members)] for values_TN in columns]
        columns_by_name.append((name, rows.astype(np.int64), np.stack(columns_of_members, axis=2)))
    return columns_by_name


def copies_as_whole(
    series: WorkerSeries, budget: AlarmBudget, members: tuple[int, ...], copy_sets: Sequence[CopySet]
) -> CopySet | None:
    """All members as one set, where they are too close, also when all but one of each of ``copy_sets`` are left out."""
    if any(len(copy_set.ranks) == len(members) for copy_set in copy_sets):
        return None
    threshold = budget.log_threshold("sample-losses", among=num_sample_detectors(series))
    losses_by_step = sample_losses_of(series, members)
    evidence = all_samples_alarm(series, members, bets=permutation.LOW_BETS, threshold=threshold)
    if evidence is None:
        return None
    copied_ranks = {rank for copy_set in copy_sets for rank in copy_set.ranks[1:]}
    # One of each set stays: where copies explain it, the rest is as far apart as samples are.
    kept_positions = [m for m, n in enumerate(members) if series.ranks[n] not in copied_ranks]
    if copied_ranks and len(kept_positions) > 1:
        kept_losses = {t: tuple(arrays[m] for m in kept_positions) for t, arrays in losses_by_step.items()}
        dependence = dependence_among(series, "loss", members)
        if (
            sample_losses_alarm(
                kept_losses, series.steps, bets=permutation.LOW_BETS, threshold=threshold, dependence=dependence
            )
            is None
        ):
            return None
    alarm, rows = evidence
    spread = permutation.spread_ratio(losses_by_step, rows[alarm.first : alarm.last + 1].tolist())
    if spread is None:
        return None
    copy_set = _copy_set(
        series,
        budget,
        rows,
        alarm,
        ranks=tuple(series.ranks[n] for n in members),
        statistic=AS_WHOLE,
        measured=spread.ratio,
        share=("sample-losses", num_sample_detectors(series)),
        interval=(spread.low, spread.high),
    )
    dependence = dependence_among(series, "loss", members)
    return _dated_copy_set(
        copy_set, series, dependence, rows, permutation.log_odds(losses_by_step, rows.tolist(), series.steps)
    )


def num_pair_detectors(series: WorkerSeries) -> int:
    """The number of detectors that share the budget's share of pairs."""
    return len(PAIR_STATISTICS) * max(sum(math.comb(len(members), 2) for members in comparable_groups(series)), 1)


def is_paired(members: tuple[int, ...]) -> bool:
    """True where there are other pairs of ``members`` to compare a pair with, and not too many of them."""
    return 3 <= len(members) <= MAX_PAIRED_WORKERS


def require_enough(series: WorkerSeries, budget: AlarmBudget, num_steps_of: Mapping[tuple[int, ...], int]) -> None:
    """Raise ``CannotTell`` where no group has as many steps as an alarm needs if each step wins all it can;
    ``num_steps_of`` has of each group that is paired the number of steps with values.
    """
    groups = comparable_groups(series)
    if not groups:
        raise CannotTell("no group has two workers that may be compared")
    sample_steps_needed = steps_needed(
        budget.log_threshold("sample-losses", among=num_sample_detectors(series)),
        nats=math.log(permutation.NUM_DEALS + 1),
        num_bets=len(permutation.LOW_BETS),
    )
    if len(series.sample_losses) >= sample_steps_needed:
        return
    count_text = f"{counted(len(series.sample_losses), 'step')} {'has' if len(series.sample_losses) == 1 else 'have'}"
    why = f"{count_text} per-sample losses of all workers' batches, and {sample_steps_needed} are needed"
    threshold = budget.log_threshold("pairs", among=num_pair_detectors(series))
    for members, num_steps in num_steps_of.items():
        nats = math.log(math.comb(len(members), 2))
        needed = steps_needed(threshold, nats=nats, num_bets=len(closest_pairs.CLOSENESS))
        if num_steps >= needed:
            return
        values = f"{counted(num_steps, 'step')} {'has' if num_steps == 1 else 'have'} values of {len(members)} workers"
        why += f"; {values}, and for pairs {needed} are needed"
    why += "" if len(groups[0]) > 2 else "; with two workers there is no other pair to compare with"
    raise CannotTell(why, reason="too-few-steps")


def differ_by_digest(series: WorkerSeries, worker: int, twin: int, *, first: int, last: int) -> bool:
    """True where by digests two workers [positions] shared less than ``CLOSE`` of their samples in these steps."""
    if series.consumed is None:
        return False
    share = common_share(series.consumed, worker, twin, first=first, last=last)
    return share is not None and share < CLOSE


def _may_report_pair(series: WorkerSeries, members: tuple[int, ...], pair: tuple[int, int], indices: Ints) -> bool:
    """False where of three workers the third may be the faulty one: where there are enough per-sample losses, and they
    show that the pair is as far apart as different samples are, or where digests say that it read such.
    """
    if len(members) > 3:
        return True
    worker, twin = (members[m] for m in pair)
    first, last = int(series.steps[indices[0]]), int(series.steps[indices[-1]])
    spread = permutation.spread_ratio(sample_losses_of(series, (worker, twin)), indices.tolist())
    near = spread is None or spread.low <= CLOSE
    return near and not differ_by_digest(series, worker, twin, first=first, last=last)


def _merged_sets(copy_sets: Sequence[CopySet]) -> list[CopySet]:
    """A CopySet for each set of workers that pairs connect: that with the highest detector, over all their ranks."""
    clusters: list[tuple[set[int], list[CopySet]]] = []
    for copy_set in copy_sets:
        touching = [cluster for cluster in clusters if cluster[0] & set(copy_set.ranks)]
        clusters = [cluster for cluster in clusters if not cluster[0] & set(copy_set.ranks)]
        ranks = set(copy_set.ranks).union(*(cluster[0] for cluster in touching))
        clusters.append((ranks, [copy_set, *(member for cluster in touching for member in cluster[1])]))
    merged = [
        replace(
            max(cluster_sets, key=lambda close: close.alarm.log_height),
            ranks=tuple(sorted(ranks)),
            suspect_ranks=tuple(sorted({rank for copy_set in cluster_sets for rank in copy_set.suspect_ranks} - ranks)),
            first=min(copy_set.first for copy_set in cluster_sets),
            last=max(copy_set.last for copy_set in cluster_sets),
        )
        for ranks, cluster_sets in clusters
    ]
    return sorted(merged, key=lambda close: close.first)


def _copy_set(
    series: WorkerSeries,
    budget: AlarmBudget,
    rows: Ints,
    alarm: Alarm,
    *,
    ranks: tuple[int, ...],
    statistic: str,
    measured: float,
    share: tuple[Statistic, int],
    interval: tuple[float, float] | None = None,
) -> CopySet:
    """The CopySet of ``alarm``, which indexes ``rows`` of the series; ``share`` is the detector's of the budget."""
    first, crossed, last = (int(series.steps[rows[index]]) for index in (alarm.first, alarm.crossed, alarm.last))
    rate = budget.false_alarm_rate(share[0], alarm.log_height, among=share[1], num_steps=len(series.steps))
    return CopySet(ranks, statistic, measured, first, crossed, last, alarm, rate, interval)


def _dated_copy_set(
    copy_set: CopySet, series: WorkerSeries, dependence: Dependence, rows: Ints, distances_R: Floats
) -> CopySet:
    """The CopySet with the step at which ``distances_R`` changed, which are 0 in the mean where they are no copies.

    Bets win by chance before the change, too, so where they began to win does not date it.
    """
    onset = alarm_onset(distances_R, copy_set.alarm, dependence, steady=True)
    first, low, high = (int(series.steps[rows[index]]) for index in (onset.at, onset.low, onset.high))
    return replace(copy_set, first=first, onset_interval=(low, high))
