"""Workers that compute on the same samples: agreement place by place, pairs that stay close, all too close together.

Each is an e-detector with its share of the false-alarm budget (``permutation``, ``closest_pairs``); what is reported
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
    comparable_groups,
    compared_among,
    dependence_among,
    num_sample_detectors,
    sample_losses_alarm,
    sample_losses_of,
    whole_alarm,
)
from trueline.laws.unlike_workers.outliers import named_outliers
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

PLACES, WHOLE = "losses of parts, place by place", "losses of parts, as a whole"
EQUAL_STEPS = 3
"""Steps of bitwise equal, changing, finely resolved losses that are no chance."""

PAIR_STATISTICS = ("losses", "gradient norms", "directions", "losses, norms and directions together")


@dataclass(frozen=True)
class Copies:
    """Workers [ranks] that are too close, how close and since when; steps are optimizer steps.

    ``first`` is a change point, ``since`` the lowest and highest step that it may be (95 %).
    ``unless`` are the other ranks, where there are too few of them to exclude that these are faulty.
    """

    ranks: tuple[int, ...]
    statistic: str
    measured: float
    first: int
    crossed: int
    last: int
    alarm: Alarm
    rate: float
    interval: tuple[float, float] | None = None
    since: tuple[int, int] = (0, 0)
    unless: tuple[int, ...] = ()


@memoized
def copies_among(series: WorkerSeries, budget: AlarmBudget, members: tuple[int, ...]) -> tuple[Copies, ...]:
    """All sets of ``members`` (one declared group) that are too close; all of them together, or sets of them."""
    found = same_places(series, budget, members)
    named = {rank for close in found for rank in close.ranks}
    found += [close for close in connected_pairs(series, budget, members) if not named & set(close.ranks)]
    everyone = whole_batches(series, budget, members, found)
    return (everyone,) if everyone else tuple(found)


def same_places(series: WorkerSeries, budget: AlarmBudget, members: tuple[int, ...]) -> list[Copies]:
    """The sets of workers whose losses agree place by place, beyond what all places have in common. Not where digests
    say that they read other samples and each loss is of several: places may then be losses of different kinds, as of
    real and of made samples in a GAN, whose levels move alike on all workers.
    """
    among = num_sample_detectors(series)
    threshold = budget.log_threshold("sample-losses", among=among)
    dealt = sample_losses_of(series, members)
    dependence = dependence_among(series, "loss", members)
    alarmed = _places_alarm(dealt, series, threshold, dependence)
    if alarmed is None:
        return []
    bare = permutation.without_profile(dealt)
    if _places_alarm(bare, series, threshold, dependence) is None:
        return []
    alarm, rows = alarmed
    correlation_MM, number = permutation.place_correlations(bare, rows[alarm.first : alarm.last + 1].tolist())
    upper = np.where(np.triu(np.ones(correlation_MM.shape, dtype=np.bool_), k=1), np.nan_to_num(correlation_MM), -1.0)
    limit = max(float(upper.max(initial=0.0)) / 2, _CHANCE_ERRORS / math.sqrt(max(number, 1)), _LEAST_CORRELATION)
    found: list[Copies] = []
    first_step, last_step = (int(series.steps[rows[at]]) for at in (alarm.first, alarm.last))
    are_samples = _are_samples(series, members, rows[alarm.first])
    for first, second in np.argwhere(upper >= limit).tolist():
        correlation = float(upper[first, second])
        if not are_samples and apart_by_digest(
            series, members[first], members[second], first=first_step, last=last_step
        ):
            continue
        found.append(
            _copies(
                (series, rows, budget),
                (series.ranks[members[first]], series.ranks[members[second]]),
                PLACES,
                correlation,
                alarm,
                ("sample-losses", among),
                _fisher(correlation, number),
            )
        )

    def apart(close: Copies) -> tuple[Ints, Floats]:
        places = [members.index(series.ranks.index(rank)) for rank in close.ranks]
        own = {t: [arrays[place] for place in places] for t, arrays in bare.items()}
        return rows, permutation.log_odds(permutation.by_place(own), rows.tolist(), series.steps)

    return [_dated(close, series, dependence, *apart(close)) for close in _connected(found)]


def _are_samples(series: WorkerSeries, members: tuple[int, ...], row: int) -> bool:
    """Whether the losses of a step are of a sample each, as far as is known how many were read."""
    sizes = [len(array) for array in series.sample_losses[int(row)]]
    return not any(sizes[worker] < series.samples[row, worker] for worker in members)


def _places_alarm(
    dealt: permutation.SampleLosses, series: WorkerSeries, threshold: float, dependence: Dependence
) -> tuple[Alarm, Ints] | None:
    return sample_losses_alarm(
        permutation.by_place(dealt),
        series.steps,
        bets=permutation.HIGH_BETS,
        threshold=threshold,
        dependence=dependence,
        allowance=1.0,
    )


def _fisher(correlation: float, number: int) -> tuple[float, float]:
    """The 95 % interval of a correlation of ``number`` pairs (Fisher's z)."""
    z, half = math.atanh(min(correlation, 1 - 1e-12)), 1.96 / math.sqrt(max(number - 3, 1))
    return math.tanh(z - half), math.tanh(z + half)


def connected_pairs(series: WorkerSeries, budget: AlarmBudget, members: tuple[int, ...]) -> list[Copies]:
    """The sets of copies, one for each set of workers that pairs connect."""
    if not is_paired(members):
        return []
    among = num_pair_detectors(series)
    threshold = budget.log_threshold("pairs", among=among)
    every = closest_pairs.pairs_of(len(members))
    found: list[Copies] = []
    dependence = dependence_among(series, "loss", members)  # of three workers or more, that of all they show
    columns = pair_columns(series, members)
    for statistic, rows, values_RMC in columns:
        above = _above(closest_pairs.heights(values_RMC, dependence_ratio=dependence.ratio), threshold)
        off = _far_off(series, budget, members, rows, statistic) if above else {}
        for p, alarm in _pair_alarms(values_RMC, above, off, threshold, dependence):
            window = slice(alarm.first, alarm.last + 1)
            measured = closest_pairs.closeness(values_RMC[window], *every[p])
            if measured <= CLOSE and _third_allows(series, members, every[p], rows[window]):
                first, second = every[p]
                ranks = (series.ranks[members[first]], series.ranks[members[second]])
                close = _copies((series, rows, budget), ranks, statistic, measured, alarm, ("pairs", among), None)
                third = tuple(series.ranks[n] for n in members if series.ranks[n] not in ranks)
                found.append(replace(close, unless=third) if len(third) == 1 and measured > 0 else close)

    def apart(close: Copies) -> tuple[Ints, Floats]:
        rows, values_RMC = next(found[1:] for found in columns if found[0] == close.statistic)
        own = [p for p, pair in enumerate(every) if {series.ranks[members[m]] for m in pair} <= set(close.ranks)]
        return rows, closest_pairs.nearness(values_RMC, own)

    return [_dated(close, series, dependence, *apart(close)) for close in _connected(found)]


def _above(heights_P: Floats, threshold: float) -> list[int]:
    """The pairs that alarm, highest first, as many as are worth a second look."""
    return [int(p) for p in np.argsort(-heights_P) if heights_P[p] >= threshold][:_MAX_ALARMED]


def _pair_alarms(
    values_RMC: Floats, above: Sequence[int], off: Mapping[int, int], threshold: float, dependence: Dependence
) -> list[tuple[int, Alarm]]:
    """The pairs that alarm, also without the other workers that are ``off`` (place, and row from which on).

    A worker that is far from all others takes its share of the bets with it: of N workers and one that is far, each
    other pair wins N / (N - 2) times too much at every step. Where only the pair is left there is nothing to compare
    it with, and its bets neither win nor lose.
    """
    every = closest_pairs.pairs_of(values_RMC.shape[1])
    by_absent: dict[frozenset[int], list[int]] = {}
    for p in above:
        by_absent.setdefault(frozenset(off) - set(every[p]), []).append(p)
    found: dict[int, Alarm] = {}
    for absent, chosen in by_absent.items():
        rest_RMC = values_RMC.copy()
        for place in absent:
            rest_RMC[off[place] :, place] = np.nan
        log_e_RKB = closest_pairs.log_e_of_pairs(rest_RMC, chosen) / dependence.ratio
        alarms = {p: alarm_of(log_e_RKB[:, k], threshold=threshold) for k, p in enumerate(chosen)}
        found |= {p: alarm for p, alarm in alarms.items() if alarm is not None}
    return [(p, found[p]) for p in above if p in found]


def _far_off(
    series: WorkerSeries, budget: AlarmBudget, members: tuple[int, ...], rows: Ints, statistic: str
) -> dict[int, int]:
    """The places among ``members`` of outliers that are known by name, and the row from which on each is one.

    Of three workers, the direction alone names the one that is no copy of the other two: that does not count in losses
    and norms, which two copies share and a third worker whose direction alone differs leaves as they are.
    """
    turned = len(members) > 3 or "directions" in statistic
    off: dict[int, int] = {}
    for outlier in named_outliers(series, budget):
        for worker in set(outlier.workers) & set(members):
            place, row = members.index(worker), int(np.searchsorted(rows, outlier.first))
            if turned or outlier.quantity != "direction":
                off[place] = min(row, off.get(place, row))
    return off


def pair_columns(series: WorkerSeries, members: tuple[int, ...]) -> list[tuple[str, Ints, Floats]]:
    """The statistics of pairs: name, indices [R] of the steps that say something, and values [R, M, C]."""
    singles = [series.loss, series.log_norm, series.cosine]
    groups = [series.group_log_norm[:, :, g] for g in range(series.group_log_norm.shape[2])]
    declared = series.declared or (tuple(range(series.num_workers)),)
    place = declared.index(members)
    out: list[tuple[str, Ints, Floats]] = []
    for name, columns in zip(PAIR_STATISTICS, [[one] for one in singles] + [[*singles, *groups]], strict=True):
        rows = np.unique(np.concatenate([compared_among(series, one, members)[0] for one in columns]))
        chosen = [series.compared(one)[place][rows][:, list(members)] for one in columns]
        out.append((name, rows.astype(np.int64), np.stack(chosen, axis=2)))
    return out


def whole_batches(
    series: WorkerSeries, budget: AlarmBudget, members: tuple[int, ...], found: Sequence[Copies]
) -> Copies | None:
    """All members too close together, and still so when all but one of each set that was found are left out."""
    if any(len(close.ranks) == len(members) for close in found):
        return None
    threshold = budget.log_threshold("sample-losses", among=num_sample_detectors(series))
    dealt = sample_losses_of(series, members)
    alarmed = whole_alarm(series, members, bets=permutation.LOW_BETS, threshold=threshold)
    if alarmed is None:
        return None
    copies = {rank for close in found for rank in close.ranks[1:]}
    others = [m for m, n in enumerate(members) if series.ranks[n] not in copies]
    if copies and len(others) > 1:
        rest = {t: tuple(arrays[m] for m in others) for t, arrays in dealt.items()}
        dependence = dependence_among(series, "loss", members)
        if (
            sample_losses_alarm(
                rest, series.steps, bets=permutation.LOW_BETS, threshold=threshold, dependence=dependence
            )
            is None
        ):
            return None
    alarm, rows = alarmed
    spread = permutation.spread_ratio(dealt, rows[alarm.first : alarm.last + 1].tolist())
    if spread is None:
        return None
    close = _copies(
        (series, rows, budget),
        tuple(series.ranks[n] for n in members),
        WHOLE,
        spread.ratio,
        alarm,
        ("sample-losses", num_sample_detectors(series)),
        (spread.low, spread.high),
    )
    dependence = dependence_among(series, "loss", members)
    return _dated(close, series, dependence, rows, permutation.log_odds(dealt, rows.tolist(), series.steps))


def num_pair_detectors(series: WorkerSeries) -> int:
    """How many detectors share the budget's share of pairs."""
    return len(PAIR_STATISTICS) * max(sum(math.comb(len(members), 2) for members in comparable_groups(series)), 1)


def is_paired(members: tuple[int, ...]) -> bool:
    """Whether there are other pairs of ``members`` to compare one with, and not too many of them."""
    return 3 <= len(members) <= MAX_PAIRED_WORKERS


def require_enough(series: WorkerSeries, budget: AlarmBudget, have: Mapping[tuple[int, ...], int]) -> None:
    """Raise ``CannotTell`` where no group has as many steps as an alarm needs if each step wins all it can: ``have``
    says how many steps have values, by the groups that are paired.
    """
    groups = comparable_groups(series)
    if not groups:
        raise CannotTell("no group has two workers that may be compared")
    dealt = steps_needed(
        budget.log_threshold("sample-losses", among=num_sample_detectors(series)),
        nats=math.log(permutation.NUM_DEALS + 1),
        num_bets=len(permutation.LOW_BETS),
    )
    if len(series.sample_losses) >= dealt:
        return
    has = f"{counted(len(series.sample_losses), 'step')} {'has' if len(series.sample_losses) == 1 else 'have'}"
    why = f"{has} per-sample losses of all workers' batches, and {dealt} are needed"
    threshold = budget.log_threshold("pairs", among=num_pair_detectors(series))
    for members, num_steps in have.items():
        nats = math.log(math.comb(len(members), 2))
        needed = steps_needed(threshold, nats=nats, num_bets=len(closest_pairs.CLOSENESS))
        if num_steps >= needed:
            return
        values = f"{counted(num_steps, 'step')} {'has' if num_steps == 1 else 'have'} values of {len(members)} workers"
        why += f"; {values}, and for pairs {needed} are needed"
    why += "" if len(groups[0]) > 2 else "; with two workers there is no other pair to compare with"
    raise CannotTell(why, reason="too-few-steps")


def apart_by_digest(series: WorkerSeries, one: int, other: int, *, first: int, last: int) -> bool:
    """Whether digests say that two workers [positions] shared less than ``CLOSE`` of their samples in these steps."""
    if series.consumed is None:
        return False
    share = common_share(series.consumed, one, other, first=first, last=last)
    return share is not None and share < CLOSE


def _third_allows(series: WorkerSeries, members: tuple[int, ...], pair: tuple[int, int], indices: Ints) -> bool:
    """Whether a pair may be reported: of three workers the third may be the faulty one, and then per-sample losses,
    where there are enough, show that the pair is as far apart as different samples are, or digests that it read such.
    """
    if len(members) > 3:
        return True
    one, other = (members[m] for m in pair)
    first, last = int(series.steps[indices[0]]), int(series.steps[indices[-1]])
    spread = permutation.spread_ratio(sample_losses_of(series, (one, other)), indices.tolist())
    near = spread is None or spread.low <= CLOSE
    return near and not apart_by_digest(series, one, other, first=first, last=last)


def _connected(found: Sequence[Copies]) -> list[Copies]:
    """One for each set of workers that pairs connect: that with the highest detector, over all of the set's ranks."""
    clusters: list[tuple[set[int], list[Copies]]] = []
    for close in found:
        touching = [each for each in clusters if each[0] & set(close.ranks)]
        clusters = [each for each in clusters if not each[0] & set(close.ranks)]
        ranks = set(close.ranks).union(*(each[0] for each in touching))
        clusters.append((ranks, [close, *(one for each in touching for one in each[1])]))
    merged = [
        replace(
            max(closes, key=lambda close: close.alarm.log_height),
            ranks=tuple(sorted(ranks)),
            unless=tuple(sorted({rank for close in closes for rank in close.unless} - ranks)),
            first=min(close.first for close in closes),
            last=max(close.last for close in closes),
        )
        for ranks, closes in clusters
    ]
    return sorted(merged, key=lambda close: close.first)


def _copies(
    place: tuple[WorkerSeries, Ints, AlarmBudget],
    ranks: tuple[int, ...],
    statistic: str,
    measured: float,
    alarm: Alarm,
    share: tuple[Statistic, int],
    interval: tuple[float, float] | None,
) -> Copies:
    series, rows, budget = place
    first, crossed, last = (int(series.steps[rows[index]]) for index in (alarm.first, alarm.crossed, alarm.last))
    rate = budget.false_alarm_rate(share[0], alarm.log_height, among=share[1], num_steps=len(series.steps))
    return Copies(ranks, statistic, measured, first, crossed, last, alarm, rate, interval)


def _dated(close: Copies, series: WorkerSeries, dependence: Dependence, rows: Ints, apart_R: Floats) -> Copies:
    """The same with the step at which ``apart_R`` changed: how far apart they are, 0 in the mean if they are no copies.

    Bets win by chance before the change, too, so where they began to win does not date it.
    """
    onset = alarm_onset(apart_R, close.alarm, dependence, steady=True)
    first, low, high = (int(series.steps[rows[index]]) for index in (onset.at, onset.low, onset.high))
    return replace(close, first=first, since=(low, high))
