"""Calls that become unlike their own past: faults that begin late, in runs that were not equal before.

Two runs that round otherwise part step by step, and soon no law says how far parameters, and all that is made of them,
may be apart. What a call *adds* is another matter: the difference of what it returns over the differences of what it
took hardly changes from step to step, however far both have grown. With m the relative difference of a value, i the
root of the sum of the squares of those of what it was made from, and u what its call rounds,

    d = ln(sqrt(m² + u²) / sqrt(i² + u²))

is held against the same value's d at the steps before: a jump is d minus the logarithm of the root mean square of e^d
there. How large jumps are while nothing is wrong, the pair of runs shows itself: each earlier step's d over that of
the other earlier steps, of all values of the pass, and the jumps of those calls of this step that ran before, which
cannot be the consequence of this one. (The first step is a past for the others and no jump: parameters are equal there
or differ by a rounding, as never again.) If the next jump is exchangeable with these, ``peaks_over_threshold.log_tail``
says how likely one as large is; and adding up over all values and steps that are judged bounds how often a healthy pair
is blamed.

What is assumed and not proven is that jumps are exchangeable. ``benchmarks/compare/late`` measures what comes of it.

Values of few elements are left out: the difference of one number may be next to nothing by chance, and then not. So
are calls that only move numbers, and the optimizer, whose quotients make of small differences what is no ratio at all.

Letters: K values of one pass, S steps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trueline.analyze.compare.expect.rounding import UNIT_ROUNDOFF, coarser, rounding_rel
from trueline.analyze.compare.judge.step import Step, value_of
from trueline.analyze.compare.judge.values import Compared
from trueline.analyze.compare.op_names import function_of, op_class_of
from trueline.analyze.stats.peaks_over_threshold import log_tail, tail_size

Floats = NDArray[np.float64]
Key = tuple[int, str, str, int, str]

FALSE_ALARMS = 0.01
"""Values that are blamed by their past, expected at most of a comparison of two runs that differ by rounding alone:
half of them in the forward pass, half in the backward."""

FEWEST = 12
"""Jumps to compare with before the first value is judged."""

FEWEST_ELEMENTS = 16
"""Of a value that is judged."""

LEAST_MEAN = 0.3
"""The k largest jumps are taken to exceed the next one by so much on average at least, a factor of 1.35: a past that
hardly moved, as one of views and of values that are all but equal, may yet. ``benchmarks/compare/late`` has how many
healthy pairs are told of with it.
"""

VISIBLE = 16 * UNIT_ROUNDOFF["float32"]
"""What statistics do not show of a difference, relative: by so much may sums that the recorder took be off
(``distance``), and u is no less where a difference was measured by them."""

_MOST = 10.0
"""A relative difference is taken for no more than this; so are NaN and infinities that differ."""

_PASSES = {"fwd": "forward", "bwd": "backward", "grad": "backward"}


@dataclass(frozen=True, slots=True)
class HistoryOutlier:
    """A value that is unlike its past: the row of that place in a step. ``expected`` is the relative difference that
    its past lets expect, ``num_steps`` how many steps that is, ``false_alarm_rate`` how many values as unlike are
    expected of a whole healthy comparison, at most.
    """

    at: int
    """Which of the steps that were given."""
    place: int
    expected: float
    num_steps: int
    false_alarm_rate: float


@dataclass(frozen=True, slots=True)
class _Added:
    """What the call of a value added to the differences of what it took: ``d``, and sqrt(i² + u²)."""

    key: Key
    place: int
    log_ratio: float
    taken: float


def history_outliers(steps: Sequence[Step]) -> list[HistoryOutlier]:
    """Values that are unlike their past, with a rate below ``FALSE_ALARMS``, in the order of steps and of execution."""
    ranks: defaultdict[int | None, list[int]] = defaultdict(list)
    for index, step in enumerate(steps):
        ranks[step.rank].append(index)
    tested: dict[str, list[tuple[float, HistoryOutlier]]] = {"forward": [], "backward": []}
    counts = dict.fromkeys(tested, 0)
    for indices in ranks.values():
        added = [list(_added(steps[index])) for index in indices]
        for of_pass, found in tested.items():
            table = _Table([[each for each in rows if _PASSES[each.key[1]] == of_pass] for rows in added], indices)
            counts[of_pass] += table.test(found)
    told = [
        replace(unlike, false_alarm_rate=rate)
        for of_pass, found in tested.items()
        for log_p, unlike in found
        if (rate := len(tested) * counts[of_pass] * math.exp(log_p)) < FALSE_ALARMS
    ]
    return sorted(told, key=lambda each: (steps[each.at].step, each.place, each.at))


class _Table:
    """What calls of one pass of one rank added, step by step; ``indices`` are of the steps."""

    def __init__(self, added: Sequence[Sequence[_Added]], indices: Sequence[int]) -> None:
        keys = {each.key: None for rows in added for each in rows}
        place = {key: k for k, key in enumerate(keys)}
        self._added, self._indices = added, indices
        self._rows = [{place[each.key]: each for each in rows} for rows in added]
        self._log_KS = np.full((len(keys), len(added)), np.nan)
        for s, rows in enumerate(self._rows):
            for k, each in rows.items():
                self._log_KS[k, s] = each.log_ratio

    def test(self, found: list[tuple[float, HistoryOutlier]]) -> int:
        """How many values were judged; those that stand out at all are added to ``found``, with ln of how likely that
        is of one value.
        """
        num_tests = 0
        square_KS = np.exp(2 * self._log_KS)
        for s in range(1, len(self._added)):
            known_K = np.isfinite(square_KS[:, :s]).sum(axis=1)
            total_K = np.nansum(square_KS[:, :s], axis=1)
            past = _Past(_jumps_of(self._log_KS[:, 1:s], square_KS[:, 1:s], known_K, total_K))
            for k, each in sorted(self._rows[s].items(), key=lambda item: item[1].place):
                if not known_K[k]:
                    continue
                usual = math.sqrt(float(total_K[k] / known_K[k]))
                jump = each.log_ratio - math.log(usual)
                if past.num >= FEWEST:
                    num_tests += 1
                    log_p = past.log_probability(jump)
                    if log_p < 0:
                        expected = usual * each.taken
                        found.append(
                            (log_p, HistoryOutlier(self._indices[s], each.place, expected, int(known_K[k]), 1.0))
                        )
                past.add(jump)
        return num_tests


def _jumps_of(log_KS: Floats, square_KS: Floats, known_K: NDArray[np.int64], total_K: Floats) -> Floats:
    """[n] of each of these steps and values, the jump from the other steps, of which there are ``known_K`` - 1."""
    several = known_K > 1
    others_KS = total_K[several, None] - np.nan_to_num(square_KS[several])
    with np.errstate(divide="ignore", invalid="ignore"):
        jumps_KS = log_KS[several] - 0.5 * np.log(others_KS / (known_K[several, None] - 1))
    return jumps_KS[np.isfinite(jumps_KS)]


class _Past:
    """Jumps so far: how many, and the largest of them."""

    def __init__(self, jumps: Floats) -> None:
        self.num = len(jumps)
        self._largest: list[float] = sorted(jumps.tolist())[-tail_size(10**6) - 1 :]

    def add(self, jump: float) -> None:
        self.num += 1
        self._largest = sorted([*self._largest, jump])[-tail_size(10**6) - 1 :]

    def log_probability(self, jump: float) -> float:
        """Of a jump as large: the natural log."""
        largest = self._largest[-tail_size(self.num) - 1 :]
        if jump <= largest[0]:
            return 0.0
        return log_tail(jump, np.array(largest), self.num, least_mean=LEAST_MEAN)


def _added(step: Step) -> Iterator[_Added]:
    """What each call of the forward and backward pass added, value by value, in the order of execution."""
    measured = {row.root: _rel(row) for row in step.rows if _is_first_sighting(row) and row.distance is not None}
    for row in step.rows:
        if not _is_judged(row) or row.mine is None or row.theirs is None or row.expectation is None:
            continue
        taken = [rel for root in row.expectation.sources if (rel := measured.get(root)) is not None]
        m = _rel(row)
        if m is None or not taken:
            continue
        unit = UNIT_ROUNDOFF[coarser(row.mine.dtype, row.theirs.dtype)]
        u = max(row.expectation.own, math.sqrt(2) * rounding_rel(unit), 0.0 if _is_exact(row) else VISIBLE)
        before = math.hypot(u, *taken)
        site = value_of(row).site
        key = site.micro, site.phase, site.name, site.call, site.slot
        yield _Added(key, row.place, math.log(math.hypot(m, u) / before), before)


def _is_first_sighting(row: Compared) -> bool:
    return row.root == row.place


def _is_exact(row: Compared) -> bool:
    return row.distance is not None and row.distance.how == "tensor"


def _rel(row: Compared) -> float | None:
    if row.distance is None or row.judgement == "not-comparable":
        return None
    if row.distance.nonfinite_differ:
        return _MOST
    return None if row.distance.rel is None else min(row.distance.rel, _MOST)


def _is_judged(row: Compared) -> bool:
    """Whether a value is made by a call of the forward or backward pass that does more than move numbers."""
    if not _is_first_sighting(row) or row.expectation is None or row.expectation.origin not in ("call", "gradient"):
        return False
    value = value_of(row)
    if value.site.phase not in _PASSES or value.dtype not in UNIT_ROUNDOFF or value.stats is None:
        return False
    moves = value.site.phase == "fwd" and op_class_of(function_of(value.api)) == "exact"
    return value.stats.numel >= FEWEST_ELEMENTS and not moves
