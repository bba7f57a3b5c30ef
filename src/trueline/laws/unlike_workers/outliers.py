"""Outlying workers, and since when: detection, naming one after the other, and which of two is faulty.

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
from trueline.judge.stats.autocorrelation import INDEPENDENT, Dependence
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
"""Factor by which an interval is wider where its steps were selected by the evidence they hold. Measured
(studies/judgement, intervals): in runs that end 60 steps after a shift of 1 spread began (N = 2, 4 and 8, t(3)
noise) the plain 95 % interval over all steps of the evidence holds the truth in 83 of 109, the reported one in 107.
Where runs go on, so that most intervals are of the steps after the alarm, the reported one holds it in 857 of 898."""

_SHORTEST_JUMP, _LONGEST_JUMP = 3, 20
"""Steps on each side of a jump that are compared."""

_JUMPS_BEFORE = 8
"""Steps before a jump in those of its width: as many must be there to know how large changes usually are."""

_GROWTH_POINTS = 48
"""Stretches of steps by which a finding tells how its evidence grew."""

_PLAIN_LEVEL = 0.01
"""A change in the other worker's own series that is rarer than this leaves it undecided which is faulty."""


@dataclass(frozen=True)
class Outlier:
    """Workers [positions] that are unlike their ``peers``; ``first``, ``crossed`` and ``last`` index ``series.steps``.

    ``group`` is the parameter group whose detector is furthest above its threshold, None for the whole.
    ``onset_bounds`` is the lowest and highest index that ``first`` may be (95 %). ``undecided`` says that ``peers`` may
    as well be faulty. ``decided_by`` says how of two workers one was named. ``ongoing`` says that the detector has not
    come down from its height by the last step. ``dependence`` is the workers', by the detector that alarmed.
    ``growth`` is its height (natural log) along the steps: of each of some stretches the index of the highest, and it.
    """

    quantity: Quantity
    workers: tuple[int, ...]
    peers: tuple[int, ...]
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
    dependence: Dependence = INDEPENDENT
    onset_bounds: tuple[int, int] = (0, 0)
    growth: tuple[tuple[int, float], ...] = ()

    @property
    def concerned(self) -> tuple[int, ...]:
        """The workers of which some are faulty: those named, or all where that is undecided."""
        return tuple(sorted(self.workers + self.peers)) if self.undecided else self.workers

    @property
    def detector(self) -> int:
        """Index of the detector that alarmed: 0 that of the whole, then those of parameter groups."""
        return 0 if self.group is None else self.group + 1

    def meets(self, outlier: Outlier) -> bool:
        """True where the evidence of both covers a common step."""
        return self.first <= outlier.last and outlier.first <= self.last


@dataclass(frozen=True)
class _PeerGroup:
    """The values [R, D, M] of workers that are meant to be equal, with the threshold of each detector [D], its weight
    in the budget, and the workers' dependence by it.
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
    """Outliers in a quantity, in order of their evidence.

    Raises ``CannotTell`` where no step has two workers to compare, or fewer steps have than any alarm needs.
    """
    peer_groups = _peer_groups(series, budget, quantity)
    # By the first steps alone, so that what was enough once is enough at each further step.
    start = series.first(FIRST_STEPS)
    steps = [
        (ratio_among(start, quantity, peer_group.members), len(peer_group.rows), len(peer_group.members))
        for peer_group in peer_groups
    ]
    enough_steps(quantity, steps, float(peer_groups[0].thresholds[0]))
    outliers = [outlier for peer_group in peer_groups for outlier in _outliers_of_group(peer_group, quantity)]
    return tuple(sorted(outliers, key=lambda outlier: (outlier.first, outlier.workers)))


@memoized
def decided_outliers(series: WorkerSeries, budget: AlarmBudget) -> tuple[Outlier, ...]:
    """The outliers in any quantity of which the faulty one is known; a quantity that cannot be judged has none."""
    outliers: list[Outlier] = []
    for quantity in _STATISTICS:
        with suppress(CannotTell):
            outliers += [outlier for outlier in find_outliers(series, budget, quantity) if not outlier.undecided]
    return tuple(outliers)


def effect_of(outlier: Outlier, values_TN: Floats, measure: Callable[..., Estimate] = mean_difference) -> Estimate:
    """The estimate of ``measure`` for the named workers and their peers, during the evidence.

    Steps up to the alarm were selected because they look unlike; those after it were not. So the effect is measured
    on the steps between the alarm and the height of the evidence, or, where these are few, on all with a wider error.
    Where workers are autocorrelated, a step counts as much less as its evidence is divided by.
    """
    factor = math.sqrt(outlier.dependence.ratio)
    fresh = measure(values_TN[outlier.crossed + 1 : outlier.last + 1], outlier.workers, outlier.peers)
    if fresh.num_steps >= _ENOUGH_AFTER:
        return replace(fresh, error=factor * fresh.error)
    selected = measure(values_TN[outlier.first : outlier.last + 1], outlier.workers, outlier.peers)
    return replace(selected, error=factor * _SELECTED * selected.error)


def _peer_groups(series: WorkerSeries, budget: AlarmBudget, quantity: Quantity) -> list[_PeerGroup]:
    whole_TN, groups_TNG = whole_and_groups(series, quantity)
    measured = any_over(np.isfinite(groups_TNG), (0, 1))
    values_TDN = np.concatenate([whole_TN[:, None], np.moveaxis(groups_TNG, 2, 1)], axis=1)
    # All workers share the budget, whichever they are compared with.
    among = sum(len(group) for group in series.declared) or series.num_workers
    thresholds, weights = thresholds_of(budget, quantity, measured, among=among)
    groups = series.declared or (tuple(range(series.num_workers)),)
    peer_groups: list[_PeerGroup] = []
    for members, compared_TDN in zip(groups, series.compared(values_TDN), strict=True):
        values_TDM = compared_TDN[:, :, list(members)]
        rows = np.flatnonzero(np.any(np.count_nonzero(np.isfinite(values_TDM), axis=2) > 1, axis=1))
        allowance = series.allowance[rows][:, None, list(members)]
        dependences = _dependences(series, quantity, members, groups_TNG.shape[2])
        peer_groups.append(_PeerGroup(rows, members, values_TDM[rows], allowance, thresholds, weights, dependences))
    return peer_groups


def thresholds_of(budget: AlarmBudget, quantity: Quantity, measured_G: Bools, *, among: int) -> tuple[Floats, Floats]:
    """[D] thresholds of the detectors of each of ``among`` workers, and their weights in the budget; ``measured_G``
    says which parameter groups have values at all.
    """
    whole, per_group = _STATISTICS[quantity]
    group_detector: tuple[Statistic, int] = (per_group or whole, among * max(int(np.count_nonzero(measured_G)), 1))
    detectors: list[tuple[Statistic, int]] = [(whole, among), *[group_detector] * len(measured_G)]
    thresholds = np.array([budget.log_threshold(statistic, among=number) for statistic, number in detectors])
    return thresholds, np.array([budget.weight(statistic, among=number) for statistic, number in detectors])


def _dependences(
    series: WorkerSeries, quantity: Quantity, members: tuple[int, ...], groups: int
) -> tuple[Dependence, ...]:
    """[D] dependences of ``members``, of the whole and of each parameter group."""
    whole, per_group = _SERIES[quantity]
    by_group = [dependence_among(series, per_group, members, group) for group in range(groups)]
    return (dependence_among(series, whole, members), *by_group)


def fewest_steps(threshold: float, *, num_workers: int) -> int:
    """Steps after which a worker that is last at every one of them can reach ``threshold``.

    Then all bets in its direction, half of them, win ln N a step, and the starts add up to N / (N - 1) times as much.
    """
    start = math.log(2) - math.log(num_workers / (num_workers - 1))
    return math.ceil((threshold + start) / math.log(num_workers))


def ratio_among(series: WorkerSeries, quantity: Quantity, members: tuple[int, ...]) -> float:
    """V, by which the evidence on ``members``, one declared group, is divided."""
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


def _outliers_of_group(peer_group: _PeerGroup, quantity: Quantity) -> list[Outlier]:
    """Outliers among the workers of one declared group: named one by one, then compared with each other."""
    values = peer_group.values.copy()
    outliers: list[Outlier] = []
    while len(outliers) < len(peer_group.members) - 1:
        furthest = _furthest_worker(peer_group, values, quantity)
        if furthest is None:
            break
        outliers.append(furthest)
        # Its values before the evidence stay: they were as exchangeable as the others'.
        start = int(np.searchsorted(peer_group.rows, furthest.onset_bounds[0]))
        values[start:, :, peer_group.members.index(furthest.workers[0])] = np.nan
    return [outlier for cluster in _clusters(outliers) for outlier in _settled_outliers(peer_group, cluster)]


def _furthest_worker(peer_group: _PeerGroup, values: Floats, quantity: Quantity) -> Outlier | None:
    """The worker whose detector is furthest above its threshold, or None where none reaches it."""
    z = scores(values)
    ratio_D1 = np.array([[dependence.ratio] for dependence in peer_group.dependences])
    heights_RDM = np.where(
        np.isfinite(z), log_heights(z, allowance_TN=peer_group.allowance, dependence_N=ratio_D1), -np.inf
    )
    excess_DM = heights_RDM.max(axis=0, initial=-np.inf) - peer_group.thresholds[:, None]
    detector, position = (int(index) for index in np.unravel_index(int(np.argmax(excess_DM)), excess_DM.shape))
    alarm = _detector_alarm(peer_group, z[:, detector], position, detector)
    if alarm is None:
        return None
    onset = worker_onset(values[:, detector], position, alarm, peer_group.dependences[detector])
    first, low, high = peer_group.rows[[onset.at, onset.low, onset.high]].tolist()
    return Outlier(
        quantity=quantity,
        workers=(peer_group.members[position],),
        peers=tuple(member for member in peer_group.members if member != peer_group.members[position]),
        first=first,
        onset_bounds=(low, high),
        crossed=int(peer_group.rows[alarm.crossed]),
        last=int(peer_group.rows[alarm.last]),
        log_height=alarm.log_height,
        threshold=alarm.threshold,
        false_alarm_rate=false_alarm_rate(
            alarm.log_height, num_steps=len(peer_group.rows), weight=float(peer_group.weights[detector])
        ),
        ongoing=bool(heights_RDM[-1, detector, position] > alarm.log_height - _COME_DOWN),
        group=detector - 1 if detector else None,
        dependence=peer_group.dependences[detector],
        growth=_evidence_growth(peer_group.rows, heights_RDM[:, detector, position]),
    )


def _evidence_growth(rows_R: Ints, heights_R: Floats) -> tuple[tuple[int, float], ...]:
    """(index, height) of the highest of at most ``_GROWTH_POINTS`` stretches; without steps that have none."""
    finite = np.flatnonzero(np.isfinite(heights_R))
    stretches = np.array_split(finite, min(_GROWTH_POINTS, len(finite))) if len(finite) else []
    highest = [int(stretch[heights_R[stretch].argmax()]) for stretch in stretches]
    return tuple((int(rows_R[index]), round(float(heights_R[index]), 3)) for index in highest)


def _detector_alarm(peer_group: _PeerGroup, z_RM: Floats, position: int, detector: int) -> Alarm | None:
    """The alarm of one worker's detector, by bets on pieces of the steps."""
    pieces = range(0, len(z_RM), _PIECE_STEPS)
    log_e = [
        log_e_values(
            z_RM[start : start + _PIECE_STEPS],
            allowance_TN=peer_group.allowance[start : start + _PIECE_STEPS, 0],
            dependence_N=peer_group.dependences[detector].ratio,
        )[:, position]
        for start in pieces
    ]
    log_e_RB = np.concatenate(log_e) if log_e else np.zeros((0, len(BETS)))
    return alarm_of(log_e_RB, threshold=float(peer_group.thresholds[detector]))


def _clusters(outliers: Sequence[Outlier]) -> list[list[Outlier]]:
    """Sets of outliers whose evidence overlaps in time, directly or through others."""
    clusters: list[list[Outlier]] = []
    for outlier in outliers:
        joined = [cluster for cluster in clusters if any(outlier.meets(member) for member in cluster)]
        clusters = [cluster for cluster in clusters if cluster not in joined]
        clusters.append([outlier, *(member for cluster in joined for member in cluster)])
    return clusters


def _settled_outliers(peer_group: _PeerGroup, cluster: Sequence[Outlier]) -> list[Outlier]:
    """The outliers of one cluster by themselves where they are a minority, else one finding that workers differ."""
    workers = tuple(sorted({worker for outlier in cluster for worker in outlier.workers}))
    peers = tuple(member for member in peer_group.members if member not in workers)
    if 2 * len(workers) < len(peer_group.members):
        return [replace(outlier, peers=peers) for outlier in cluster]
    # Without a majority it is one finding, with the evidence of the surest.
    highest = max(cluster, key=lambda outlier: outlier.log_height - outlier.threshold)
    merged = replace(highest, workers=workers, peers=peers, undecided=True)
    if len(peer_group.members) > 2:
        return [merged]
    return [_reported_by_own_history(peer_group, _reported_as_higher(peer_group, merged))]


def _reported_as_higher(peer_group: _PeerGroup, outlier: Outlier) -> Outlier:
    """An outlier of two workers, reported as the one with the higher values."""
    rows = slice(*np.searchsorted(peer_group.rows, [outlier.first, outlier.last + 1]).tolist())
    values_RM = peer_group.values[rows, outlier.detector]
    higher = int(np.nansum(values_RM[:, 1] - values_RM[:, 0]) > 0)
    return replace(outlier, workers=(peer_group.members[higher],), peers=(peer_group.members[1 - higher],))


def _reported_by_own_history(peer_group: _PeerGroup, outlier: Outlier) -> Outlier:
    """An outlier of two workers, reported as the one whose own series jumps where they part, if the other's does not.

    The faulty worker decides where they diverge, so the other's series is looked at where that happens to be, and its
    level holds.
    """
    values_RM = peer_group.values[:, outlier.detector]
    rows = np.flatnonzero(np.all(np.isfinite(values_RM), axis=1))
    parted, last = (int(np.searchsorted(peer_group.rows[rows], index)) for index in (outlier.first, outlier.last))
    values_RM = values_RM[rows]
    rarity = [_change_rarity(values_RM[:, position], parted, last) for position in range(2)]
    for position in range(2):
        # Rare for one and ordinary for the other; in between it stays undecided.
        if rarity[position] < NAMING_LEVEL and rarity[1 - position] > _PLAIN_LEVEL:
            return replace(
                outlier,
                workers=(peer_group.members[position],),
                peers=(peer_group.members[1 - position],),
                undecided=False,
                decided_by="own history",
            )
    return outlier


def _change_rarity(series_R: Floats, first: int, last: int) -> float:
    """The two-sided probability, in the series' own past, of a change like the one at index ``first``.

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
