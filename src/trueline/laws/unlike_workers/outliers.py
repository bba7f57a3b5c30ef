"""Which worker is an outlier, since when: detection, naming one after the other, and which of two is faulty.

Every worker's loss, log gradient norm and cosine, of the whole gradient and of each parameter group, has an e-detector
(``exchangeability``) with a share of the budget (``alarm_budget``). Where any alarms:

1. The worker that is furthest above its threshold is named. If one worker is faulty, the others differ too, in the
other direction, but less so: a worker that is last at every step wins ln N nats a step, the N - 1 others at most
ln(N/(N - 1)) each. 2. It is taken out of the comparison from the start of its evidence on, and all others are judged
anew. Only what still alarms is named next. 3. Where half of the workers or more are named over the same steps, no
majority is left to be unlike of: then the finding is that they differ, and which is faulty is undecided. With two
workers it always is, unless their own histories tell: one series jumps at the start of the evidence by more than it
ever does, and the other does not.

The budget covers the first step exactly. What is named second or later is chosen after looking; its detector is the
same, and the workers left are as exchangeable as before.

Letters: R steps at which two workers or more can be compared, M workers of one declared group, G parameter groups; D =
1 + G detectors a worker, the whole first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from trueline.judge.compared_ranks import Bools, Floats, Ints, any_over
from trueline.judge.stats.alarm_budget import AlarmBudget, Statistic
from trueline.judge.stats.alarms import Alarm, alarm_of
from trueline.judge.stats.autocorrelation import NONE, Dependence
from trueline.judge.stats.change_point import worker_onset
from trueline.judge.stats.exchangeability import BETS, false_alarm_rate, log_e_values, log_heights, scores
from trueline.judge.stats.intervals import NORMAL_MAD, Estimate, mean_difference, t_two_sided
from trueline.judge.stats.memoize import memoized
from trueline.judge.stats.tails import NAMING_LEVEL
from trueline.laws.unlike_workers.comparable import FIRST_STEPS, SeriesName, dependence_among
from trueline.laws.unlike_workers.series import WorkerSeries
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import counted

Quantity = Literal["loss", "norm", "direction"]

_STATISTICS: dict[Quantity, tuple[Statistic, Statistic | None]] = {
    "loss": ("loss", None),
    "norm": ("norm", "norm-groups"),
    "direction": ("direction", "direction-groups"),
}

_SERIES: dict[Quantity, tuple[SeriesName, SeriesName]] = {
    "loss": ("loss", "loss"),
    "norm": ("log_norm", "group_log_norm"),
    "direction": ("cosine", "group_cosine"),
}

_NAMES: dict[Quantity, str] = {
    "loss": "losses",
    "norm": "gradient norms",
    "direction": "gradient directions (cosines to the mean of the others)",
}

_PIECE_STEPS = 1000
"""Steps whose bets are held at once."""

_COME_DOWN = math.log(100)
"""Nats that a detector has lost when its evidence is over."""

_ENOUGH_AFTER = 8
"""Steps after the alarm from which on the effect is measured on these alone."""

_SELECTED = 1.5
"""How many times as wide an interval must be where its steps were selected by the evidence they hold. Measured
(benchmarks/judgement, intervals): in runs that end 60 steps after a shift of 1 spread began (N = 2, 4 and 8, t(3)
noise) the plain 95 % interval over all steps of the evidence holds the truth in 83 of 109, the reported one in 107.
Where runs go on, so that most intervals are of the steps after the alarm, the reported one holds it in 857 of 898."""

_SHORTEST_JUMP, _LONGEST_JUMP = 3, 20
"""Steps on each side of a jump that are compared."""

_JUMPS_BEFORE = 8
"""How many times as many steps there must be before a jump, to know how large changes usually are."""

_GROWTH_POINTS = 48
"""Stretches of steps by which a finding tells how its evidence grew."""

_PLAIN_LEVEL = 0.01
"""A change in the other worker's own series that is rarer than this leaves it undecided which is faulty."""


@dataclass(frozen=True)
class Outlier:
    """Workers [positions] that are unlike ``others``; ``first``, ``crossed`` and ``last`` index ``series.steps``.

    ``group`` is the parameter group whose detector is furthest above its threshold, None for the whole. ``since`` is
    the lowest and highest index that ``first`` may be (95 %). ``undecided`` says that ``others`` may as well be
    faulty. ``decided_by`` says how of two workers one was named. ``ongoing`` says that the detector has not
    come down from its height by the last step. ``memory`` is the workers', by the detector that alarmed. ``growth`` is
    its height (natural log) along the steps, the highest of each of some stretches with the index where it was.
    """

    quantity: Quantity
    workers: tuple[int, ...]
    others: tuple[int, ...]
    first: int
    crossed: int
    last: int
    log_height: float
    threshold: float
    false_alarm_rate: float
    ongoing: bool
    group: int | None = None
    undecided: bool = False
    decided_by: str = ""
    dependence: Dependence = NONE
    since: tuple[int, int] = (0, 0)
    growth: tuple[tuple[int, float], ...] = ()

    @property
    def concerned(self) -> tuple[int, ...]:
        """The workers of which some are faulty: those named, or all where that is undecided."""
        return tuple(sorted(self.workers + self.others)) if self.undecided else self.workers

    def meets(self, other: Outlier) -> bool:
        """Whether the evidence of both covers a common step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class _Field:
    """The values of one declared group of workers: [R, D, M], with what each detector must reach [D], and how long
    workers remember by each.
    """

    rows: Ints
    members: tuple[int, ...]
    values: Floats
    allowance: Floats
    thresholds: Floats
    weights: Floats
    dependences: tuple[Dependence, ...]


def whole_and_groups(series: WorkerSeries, quantity: Quantity) -> tuple[Floats, Floats]:
    """[T, N] and [T, N, G] of a quantity; the loss has no groups."""
    if quantity == "loss":
        return series.loss, np.zeros((*series.loss.shape, 0))
    if quantity == "norm":
        return series.log_norm, series.group_log_norm
    return series.cosine, series.group_cosine


@memoized
def find_outliers(series: WorkerSeries, budget: AlarmBudget, quantity: Quantity) -> tuple[Outlier, ...]:
    """All outliers in a quantity, in order of their evidence.

    Raises ``CannotTell`` where no step has two workers to compare, or fewer steps have than any alarm needs.
    """
    fields = _fields(series, budget, quantity)
    start = series.first(FIRST_STEPS)
    steps = [(ratio_among(start, quantity, each.members), len(each.rows), len(each.members)) for each in fields]
    enough_steps(quantity, steps, float(fields[0].thresholds[0]))
    found = [outlier for each in fields for outlier in _of_field(each, quantity)]
    return tuple(sorted(found, key=lambda outlier: (outlier.first, outlier.workers)))


@memoized
def named_outliers(series: WorkerSeries, budget: AlarmBudget) -> tuple[Outlier, ...]:
    """The outliers in any quantity of which the faulty one is known; a quantity that cannot be judged has none."""
    found: list[Outlier] = []
    for quantity in _STATISTICS:
        with suppress(CannotTell):
            found += [outlier for outlier in find_outliers(series, budget, quantity) if not outlier.undecided]
    return tuple(found)


def effect_of(outlier: Outlier, values_TN: Floats, measure: Callable[..., Estimate] = mean_difference) -> Estimate:
    """What ``measure`` gives for the named workers and the others, during the evidence.

    Steps up to the alarm were selected because they look unlike; those after it were not. So the effect is measured
    on the steps between the alarm and the height of the evidence, or, where these are few, on all with a wider error.
    Where workers are autocorrelated, a step counts as much less as its evidence is divided by.
    """
    wider = math.sqrt(outlier.dependence.ratio)
    after = values_TN[outlier.crossed + 1 : outlier.last + 1]
    fresh = measure(after, outlier.workers, outlier.others)
    if fresh.num_steps >= _ENOUGH_AFTER:
        return replace(fresh, error=wider * fresh.error)
    selected = measure(values_TN[outlier.first : outlier.last + 1], outlier.workers, outlier.others)
    return replace(selected, error=wider * _SELECTED * selected.error)


def _fields(series: WorkerSeries, budget: AlarmBudget, quantity: Quantity) -> list[_Field]:
    whole_TN, groups_TNG = whole_and_groups(series, quantity)
    measured = any_over(np.isfinite(groups_TNG), (0, 1))
    values_TDN = np.concatenate([whole_TN[:, None], np.moveaxis(groups_TNG, 2, 1)], axis=1)
    among = sum(len(group) for group in series.declared) or series.num_workers
    thresholds, weights = thresholds_of(budget, quantity, measured, among=among)
    groups = series.declared or (tuple(range(series.num_workers)),)
    fields: list[_Field] = []
    for members, compared_TDN in zip(groups, series.compared(values_TDN), strict=True):
        values_TDM = compared_TDN[:, :, list(members)]
        rows = np.flatnonzero(np.any(np.count_nonzero(np.isfinite(values_TDM), axis=2) > 1, axis=1))
        allowance = series.allowance[rows][:, None, list(members)]
        dependences = _dependences(series, quantity, members, groups_TNG.shape[2])
        fields.append(_Field(rows, members, values_TDM[rows], allowance, thresholds, weights, dependences))
    return fields


def thresholds_of(budget: AlarmBudget, quantity: Quantity, measured_G: Bools, *, among: int) -> tuple[Floats, Floats]:
    """[D] what the detectors of each of ``among`` workers must reach, and their weights in the budget; ``measured_G``
    says which parameter groups have values at all.
    """
    one, each = _STATISTICS[quantity]
    in_group: tuple[Statistic, int] = (each or one, among * max(int(np.count_nonzero(measured_G)), 1))
    kinds: list[tuple[Statistic, int]] = [(one, among), *[in_group] * len(measured_G)]
    thresholds = np.array([budget.log_threshold(kind, among=number) for kind, number in kinds])
    return thresholds, np.array([budget.weight(kind, among=number) for kind, number in kinds])


def _dependences(
    series: WorkerSeries, quantity: Quantity, members: tuple[int, ...], groups: int
) -> tuple[Dependence, ...]:
    """[D] the dependence of ``members``, of the whole and of each parameter group."""
    whole, each = _SERIES[quantity]
    by_group = [dependence_among(series, each, members, g) for g in range(groups)]
    return (dependence_among(series, whole, members), *by_group)


def fewest_steps(threshold: float, *, num_workers: int) -> int:
    """Steps after which a worker that is last at every one of them can reach ``threshold``.

    Then all bets in its direction, half of them, win ln N a step, and the starts add up to N / (N - 1) times as much.
    """
    start = math.log(2) - math.log(num_workers / (num_workers - 1))
    return math.ceil((threshold + start) / math.log(num_workers))


def ratio_among(series: WorkerSeries, quantity: Quantity, members: tuple[int, ...]) -> float:
    """V of the evidence on ``members``, one declared group."""
    return dependence_among(series, _SERIES[quantity][0], members).ratio if len(members) > 1 else 1.0


def enough_steps(quantity: Quantity, steps: Sequence[tuple[float, int, int]], threshold: float) -> None:
    """Raise ``CannotTell`` where no worker could have reached ``threshold`` had it been the last at every step, by
    (V, steps that can be compared, workers) of each declared group.
    """
    needs = [
        (math.ceil(ratio * fewest_steps(threshold, num_workers=num_workers)), num_steps, num_workers)
        for ratio, num_steps, num_workers in steps
        if num_workers > 1
    ]
    if not any(num_steps for _, num_steps, _ in needs):
        raise CannotTell(f"no step has the {_NAMES[quantity]} of two workers that may be compared")
    if all(num_steps < needed for needed, num_steps, _ in needs):
        needed, num_steps, num_workers = min(needs, key=lambda need: need[0] - need[1])
        raise CannotTell(
            f"{counted(num_steps, 'step')} {'has' if num_steps == 1 else 'have'} {_NAMES[quantity]} to compare; with "
            f"{num_workers} workers, one that ranks last at every step exceeds chance after {needed} steps",
            reason="too-few-steps",
        )


def _of_field(each: _Field, quantity: Quantity) -> list[Outlier]:
    """The outliers among the workers of one declared group: named one by one, then compared with each other."""
    values = each.values.copy()
    named: list[Outlier] = []
    while len(named) < len(each.members) - 1:
        found = _furthest(each, values, quantity)
        if found is None:
            break
        named.append(found)
        start = int(np.searchsorted(each.rows, found.since[0]))
        values[start:, :, each.members.index(found.workers[0])] = np.nan
    return [outlier for together in _clusters(named) for outlier in _settled(each, together)]


def _furthest(each: _Field, values: Floats, quantity: Quantity) -> Outlier | None:
    """The worker whose detector is furthest above its threshold, or None where none reaches it."""
    z = scores(values)
    ratio_D1 = np.array([[dependence.ratio] for dependence in each.dependences])
    heights_RDM = np.where(np.isfinite(z), log_heights(z, allowance_TN=each.allowance, dependence_N=ratio_D1), -np.inf)
    excess_DM = heights_RDM.max(axis=0, initial=-np.inf) - each.thresholds[:, None]
    detector, place = (int(index) for index in np.unravel_index(int(np.argmax(excess_DM)), excess_DM.shape))
    alarm = _alarm(each, z[:, detector], place, detector)
    if alarm is None:
        return None
    onset = worker_onset(values[:, detector], place, alarm, each.dependences[detector])
    first, low, high = each.rows[[onset.at, onset.low, onset.high]].tolist()
    return Outlier(
        quantity=quantity,
        workers=(each.members[place],),
        others=tuple(member for member in each.members if member != each.members[place]),
        first=first,
        since=(low, high),
        crossed=int(each.rows[alarm.crossed]),
        last=int(each.rows[alarm.last]),
        log_height=alarm.log_height,
        threshold=alarm.threshold,
        false_alarm_rate=false_alarm_rate(
            alarm.log_height, num_steps=len(each.rows), weight=float(each.weights[detector])
        ),
        ongoing=bool(heights_RDM[-1, detector, place] > alarm.log_height - _COME_DOWN),
        group=detector - 1 if detector else None,
        dependence=each.dependences[detector],
        growth=_growth(each.rows, heights_RDM[:, detector, place]),
    )


def _growth(rows_R: Ints, heights_R: Floats) -> tuple[tuple[int, float], ...]:
    """(index, height) of the highest of at most ``_GROWTH_POINTS`` stretches; without steps that have none."""
    known = np.flatnonzero(np.isfinite(heights_R))
    stretches = np.array_split(known, min(_GROWTH_POINTS, len(known))) if len(known) else []
    highest = [int(each[heights_R[each].argmax()]) for each in stretches]
    return tuple((int(rows_R[at]), round(float(heights_R[at]), 3)) for at in highest)


def _alarm(each: _Field, z_RM: Floats, place: int, detector: int) -> Alarm | None:
    """The alarm of one detector."""
    pieces = range(0, len(z_RM), _PIECE_STEPS)
    log_e = [
        log_e_values(
            z_RM[start : start + _PIECE_STEPS],
            allowance_TN=each.allowance[start : start + _PIECE_STEPS, 0],
            dependence_N=each.dependences[detector].ratio,
        )[:, place]
        for start in pieces
    ]
    log_e_RB = np.concatenate(log_e) if log_e else np.zeros((0, len(BETS)))
    return alarm_of(log_e_RB, threshold=float(each.thresholds[detector]))


def _clusters(named: Sequence[Outlier]) -> list[list[Outlier]]:
    """The outliers in sets whose evidence overlaps in time, directly or through others."""
    clusters: list[list[Outlier]] = []
    for outlier in named:
        joined = [cluster for cluster in clusters if any(outlier.meets(other) for other in cluster)]
        clusters = [cluster for cluster in clusters if cluster not in joined]
        clusters.append([outlier, *(other for cluster in joined for other in cluster)])
    return clusters


def _settled(each: _Field, together: Sequence[Outlier]) -> list[Outlier]:
    """The outliers of one cluster by themselves where they are a minority, else one finding that workers differ."""
    workers = tuple(sorted({worker for outlier in together for worker in outlier.workers}))
    others = tuple(member for member in each.members if member not in workers)
    if 2 * len(workers) < len(each.members):
        return [replace(outlier, others=others) for outlier in together]
    highest = max(together, key=lambda outlier: outlier.log_height - outlier.threshold)
    merged = replace(highest, workers=workers, others=others, undecided=True)
    return [_by_own_history(each, _higher(each, merged)) if len(each.members) == 2 else merged]


def _higher(each: _Field, outlier: Outlier) -> Outlier:
    """The same outlier of two workers, reported as the one that has more."""
    rows = slice(*np.searchsorted(each.rows, [outlier.first, outlier.last + 1]).tolist())
    values_RM = each.values[rows, 0 if outlier.group is None else outlier.group + 1]
    higher = int(np.nansum(values_RM[:, 1] - values_RM[:, 0]) > 0)
    return replace(outlier, workers=(each.members[higher],), others=(each.members[1 - higher],))


def _by_own_history(each: _Field, outlier: Outlier) -> Outlier:
    """Of two workers, the one whose own series jumps where they part, if the other's does not.

    The faulty worker decides where they diverge, so the other's series is looked at where that happens to be, and its
    level holds.
    """
    values_RM = each.values[:, 0 if outlier.group is None else outlier.group + 1]
    rows = np.flatnonzero(np.all(np.isfinite(values_RM), axis=1))
    parted, last = (int(np.searchsorted(each.rows[rows], index)) for index in (outlier.first, outlier.last))
    values_RM = values_RM[rows]
    rarity = [_rarity(values_RM[:, place], parted, last) for place in range(2)]
    for place in range(2):
        if rarity[place] < NAMING_LEVEL and rarity[1 - place] > _PLAIN_LEVEL:
            return replace(
                outlier,
                workers=(each.members[place],),
                others=(each.members[1 - place],),
                undecided=False,
                decided_by="own history",
            )
    return outlier


def _rarity(series_R: Floats, first: int, last: int) -> float:
    """How rare in the series' own past a change is like the one at index ``first``: a two-sided probability.

    Changes are between medians of as many steps after a point as before it. Those of the past, robustly centred and
    scaled (a drift is part of them), make a t statistic with as many degrees of freedom as disjoint ones fit, less 2.
    Returns 1.0 where the past is too short to tell.
    """
    width = min(last + 1 - first, first // _JUMPS_BEFORE, _LONGEST_JUMP)
    if width < _SHORTEST_JUMP:
        return 1.0
    medians = np.median(np.lib.stride_tricks.sliding_window_view(series_R[: first + width], width), axis=1)
    changes = medians[width:] - medians[:-width]
    past, change = changes[: 1 - 2 * width], changes[-1]
    centre = float(np.median(past))
    spread = float(np.median(np.abs(past - centre))) / NORMAL_MAD
    if spread == 0:
        return float(change == centre)
    return t_two_sided(abs(change - centre) / spread, first // width - 2)
