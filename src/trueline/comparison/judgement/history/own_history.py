"""What a call adds to a difference hardly changes from step to step: calls that depart from their own history.

Two runs that round differently diverge step by step, and soon no error model says how much parameters, and all that is
computed from them, may differ. What a call *adds* is another matter: the difference of its result over the differences
of its inputs hardly changes from step to step, however large both have become. With m the relative difference of a
value, i the root of the sum of the squares of those of what it was made from, and u what its call rounds,

    d = ln(sqrt(m² + u²) / sqrt(i² + u²))

(above the line, where statistics measure, u² has ``HIDDEN``² of what is below) is compared with the same value's d at
the steps before: a jump is d minus the logarithm of the root mean square of e^d there. The pair of runs itself shows
how large jumps are while nothing is wrong: leave-one-out, each earlier step's d over that of the other earlier steps,
for all values of the pass, and the jumps of calls that ran before in this step, which cannot be a consequence of this
one. (The first step serves as history for the others and yields no jump: only there are parameters equal or differ by a
rounding.) If the next jump is exchangeable with these, ``peaks_over_threshold.log_tail`` gives the probability p of one
as large. With N values judged in a pass, over all steps and ranks, 2·N·p < ``FALSE_ALARMS`` = 0.01 makes a value
``first-divergence``, and this number is its ``false_alarm_rate``: the number of such values, at most, that are expected
in the whole comparison of a healthy pair. The earliest one is reported, unless an earlier value is beyond rounding.

That jumps are exchangeable is assumed and not proven; ``benchmarks/compare/late`` measures the consequences.

Values of few elements are left out: the difference of a single number may be nearly zero by chance. So are calls that
only move numbers, and the optimizer, in whose quotients small differences become arbitrarily large.

Letters: K values of one pass, S steps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trueline.comparison.expect.propagation import is_masked, is_swamped
from trueline.comparison.expect.rounding import UNIT_ROUNDOFF, coarser, rounding_rel
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.op_names import function_of, op_class_of
from trueline.judge.stats.peaks_over_threshold import log_tail, tail_size
from trueline.judge.stats.tails import probability

Floats = NDArray[np.float64]
Key = tuple[int, str, str, int, str, bool]
"""A value, and whether a decision came before it that the two runs take differently: what follows such a one has no
past in steps without."""

FALSE_ALARMS = 0.01
"""Expected number of values, at most, that are reported in a comparison of two runs that differ by rounding alone: half
of them in the forward pass, half in the backward."""

FEWEST = 12
"""Jumps to compare with before the first value is judged."""

FEWEST_ELEMENTS = 16
"""Of a value that is judged."""

LEAST_MEAN = 0.3
"""The least mean by which the k largest jumps are taken to exceed the next one, a factor of 1.35: a history that hardly
varied, as that of views and of nearly equal values, may vary later. ``benchmarks/compare/late`` has how many healthy
pairs are reported with it.
"""

VISIBLE = 16 * UNIT_ROUNDOFF["float32"]
"""The relative difference that statistics do not show, since sums that the recorder took may be off by as much
(``distance``); u is at least this where a difference was measured on statistics."""

HIDDEN = 0.1
"""The least share of the differences of its inputs that a call is taken to hand on where statistics measure: a few
differences of one size, as where some numbers of a coarse dtype are rounded the other way, may cancel in all three
projections, two of them in one case of eight, and a history of such a step would blame the next one."""

_LARGEST_REL = 10.0
"""Relative differences, and NaN and infinities that differ, count as this at most."""

_PASSES = {"fwd": "forward", "bwd": "backward", "grad": "backward"}


@dataclass(frozen=True, slots=True)
class HistoryOutlier:
    """A value that departs from its own history: ``at`` is the index of the step, ``place`` that of the row.
    ``expected`` is the relative difference that its history of ``num_steps`` steps predicts, ``false_alarm_rate`` the
    number of such values, at most, that are expected in a whole healthy comparison.
    """

    at: int
    position: int
    expected: float
    num_steps: int
    false_alarm_rate: float


@dataclass(frozen=True, slots=True)
class _Addition:
    """The part that the call of a value added to the differences of its inputs: ``d``, and sqrt(i² + u²)."""

    key: Key
    position: int
    log_ratio: float
    input_rel: float


def history_outliers(steps: Sequence[Step]) -> list[HistoryOutlier]:
    """Values that depart from their history, with a rate below ``FALSE_ALARMS``, by step and order of execution."""
    ranks: defaultdict[int | None, list[int]] = defaultdict(list)
    for index, step in enumerate(steps):
        ranks[step.rank].append(index)
    tested: dict[str, list[tuple[float, HistoryOutlier]]] = {"forward": [], "backward": []}
    # Each pass has half of the false alarms: a fault in one must not hide behind the tests of the other.
    counts = dict.fromkeys(tested, 0)
    for indices in ranks.values():
        added = [list(_additions(steps[index])) for index in indices]
        for of_pass, outliers_of_pass in tested.items():
            rows_of_pass = [[addition for addition in rows if _PASSES[addition.key[1]] == of_pass] for rows in added]
            table = _Table(rows_of_pass, indices)
            counts[of_pass] += table.test(outliers_of_pass)
    outliers = [
        replace(outlier, false_alarm_rate=rate)
        for of_pass, outliers_of_pass in tested.items()
        for log_p, outlier in outliers_of_pass
        if (rate := len(tested) * counts[of_pass] * probability(log_p)) < FALSE_ALARMS
    ]
    return sorted(outliers, key=lambda outlier: (steps[outlier.at].step, outlier.position, outlier.at))


class _Table:
    """All that calls of one pass of one rank added, step by step; ``indices`` are those of the steps."""

    def __init__(self, added: Sequence[Sequence[_Addition]], indices: Sequence[int]) -> None:
        keys = {addition.key: None for rows in added for addition in rows}
        index_of_key = {key: k for k, key in enumerate(keys)}
        self._added, self._indices = added, indices
        self._rows = [{index_of_key[addition.key]: addition for addition in rows} for rows in added]
        self._log_KS = np.full((len(keys), len(added)), np.nan)
        for s, rows in enumerate(self._rows):
            for k, addition in rows.items():
                self._log_KS[k, s] = addition.log_ratio

    def test(self, outliers: list[tuple[float, HistoryOutlier]]) -> int:
        """The number of values that were judged; those in the tail are added to ``outliers``, with the logarithm of the
        probability of such a jump of one value.
        """
        num_tests = 0
        square_KS = np.exp(2 * self._log_KS)
        # The first step is only history: parameters are equal there, or a rounding apart.
        for s in range(1, len(self._added)):
            known_K = np.isfinite(square_KS[:, :s]).sum(axis=1)
            total_K = np.nansum(square_KS[:, :s], axis=1)
            past = _Past(_jumps_of(self._log_KS[:, 1:s], square_KS[:, 1:s], known_K, total_K))
            # In the order of execution: jumps of earlier calls are no consequence of this one.
            for k, addition in sorted(self._rows[s].items(), key=lambda item: item[1].position):
                if not known_K[k]:
                    continue
                usual = math.sqrt(float(total_K[k] / known_K[k]))
                jump = addition.log_ratio - math.log(usual)
                if past.num >= FEWEST:
                    num_tests += 1
                    log_p = past.log_probability(jump)
                    if log_p < 0:
                        expected = usual * addition.input_rel
                        outliers.append(
                            (log_p, HistoryOutlier(self._indices[s], addition.position, expected, int(known_K[k]), 1.0))
                        )
                past.add(jump)
        return num_tests


def _jumps_of(log_KS: Floats, square_KS: Floats, known_K: NDArray[np.int64], total_K: Floats) -> Floats:
    """[n] the jump of each step and value from the other steps, of which there are ``known_K`` - 1."""
    has_others = known_K > 1
    others_KS = total_K[has_others, None] - np.nan_to_num(square_KS[has_others])
    with np.errstate(divide="ignore", invalid="ignore"):
        jumps_KS = log_KS[has_others] - 0.5 * np.log(others_KS / (known_K[has_others, None] - 1))
    return jumps_KS[np.isfinite(jumps_KS)]


class _Past:
    """The number of jumps so far, and the largest of them."""

    def __init__(self, jumps: Floats) -> None:
        self.num = len(jumps)
        # As many as the tail of a million jumps has, and one below.
        self._largest: list[float] = sorted(jumps.tolist())[-tail_size(10**6) - 1 :]

    def add(self, jump: float) -> None:
        self.num += 1
        self._largest = sorted([*self._largest, jump])[-tail_size(10**6) - 1 :]

    def log_probability(self, jump: float) -> float:
        """The natural logarithm of the probability of a jump as large."""
        largest = self._largest[-tail_size(self.num) - 1 :]
        if jump <= largest[0]:
            return 0.0
        return log_tail(jump, np.array(largest), self.num, least_mean=LEAST_MEAN)


def _additions(step: Step) -> Iterator[_Addition]:
    """The additions of each call of the forward and backward pass, value by value, in the order of execution."""
    measured = {row.root: row for row in step.rows if _is_first_sighting(row) and row.distance is not None}
    for row in step.rows:
        if not _is_judged(row) or row.run_value is None or row.ref_value is None or row.expectation is None:
            continue
        input_rels = [_input_rel(measured.get(root), row) for root in row.expectation.sources]
        measured_rels = [rel for rel in input_rels if rel is not None]
        m = _rel(row)
        if m is None or not measured_rels or len(measured_rels) < len(input_rels):
            continue  # it is not known how far off all is that it takes
        if not any((m, *measured_rels)):  # equal, of equal inputs: nothing was there to be passed on
            continue
        unit = UNIT_ROUNDOFF[coarser(row.run_value.dtype, row.ref_value.dtype)]
        u = max(row.expectation.own, math.sqrt(2) * rounding_rel(unit), 0.0 if _is_exact(row) else VISIBLE)
        u = max(u, *(_left_by_addends(row, measured.get(root)) for root in row.expectation.sources))
        before = math.hypot(u, *measured_rels)
        least = u if _is_exact(row) else math.hypot(u, HIDDEN * before)
        site = row.value.site
        key = site.micro, site.phase, site.name, site.call, site.slot, row.expectation.decided
        yield _Addition(key, row.position, math.log(math.hypot(m, least) / before), before)


def _input_rel(source: Compared | None, row: Compared) -> float | None:
    """The relative difference of what a call took; of a term of a sum in which terms cancel, relative to the sum. None
    where it was not measured, or only that of the masks beside which nothing else shows.
    """
    rel = None if source is None else _rel(source)
    value, term = row.value, None if source is None else source.value
    if term is not None and is_swamped(term):
        return None
    if rel is None or term is None or value.site.phase != "fwd" or function_of(value.api) not in _SUMS:
        return rel
    # Masks would make up the whole size of either.
    if is_masked(term) or is_masked(value):
        return rel
    sizes = [None if operand.stats is None else operand.stats.rms for operand in (term, value)]
    return rel if sizes[0] is None or not sizes[1] else rel * max(1.0, sizes[0] / sizes[1])


def _left_by_addends(row: Compared, source: Compared | None) -> float:
    """The relative difference that rounding of the addends alone makes of a gradient that is a sum over rows, as that
    of a bias is of the gradients of what its call returns: of n addends an element with root mean square a, u·a·√n in
    each run. It is far above u where they cancel: softmax takes no notice of a bias of keys, and what is left of its
    gradient is rounding.
    """
    value, addends = row.value, None if source is None else source.value
    if addends is None or addends.site.phase != "bwd" or addends.dtype not in UNIT_ROUNDOFF or len(value.shape) != 1:
        return 0.0
    if value.site.phase == "fwd" or value.stats is None or addends.stats is None or not value.stats.rms:
        return 0.0
    num = addends.stats.numel / max(value.stats.numel, 1)
    rounding = math.sqrt(2 * num) * rounding_rel(UNIT_ROUNDOFF[addends.dtype]) * (addends.stats.rms or 0.0)
    return rounding / value.stats.rms if num > 1 else 0.0


_SUMS = frozenset({"add", "sub", "radd", "rsub"})


def _is_first_sighting(row: Compared) -> bool:
    return row.root == row.position


def _is_exact(row: Compared) -> bool:
    return row.distance is not None and row.distance.how == "tensor"


def _rel(row: Compared) -> float | None:
    if row.distance is None or row.judgement == "not-comparable":
        return None
    if row.distance.nonfinite_differ:
        return _LARGEST_REL
    return None if row.distance.rel is None else min(row.distance.rel, _LARGEST_REL)


def _is_judged(row: Compared) -> bool:
    """True where a value is made by a call of the forward or backward pass that does more than move numbers."""
    if not _is_first_sighting(row) or row.expectation is None or row.expectation.origin not in ("call", "gradient"):
        return False
    if row.expectation.within is not None:
        return False  # of code that was not recorded it is not known what it had
    value = row.value
    if value.site.phase not in _PASSES or value.dtype not in UNIT_ROUNDOFF or value.stats is None:
        return False
    moves = value.site.phase == "fwd" and op_class_of(function_of(value.api)) == "exact"
    return value.stats.numel >= FEWEST_ELEMENTS and not moves
