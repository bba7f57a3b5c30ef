"""Excuses of values beyond rounding: a decision that rounding turned, or another dtype."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from trueline.comparison.expect.expectation import UNRELATED, Expectation
from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.comparison.judgement.values.compared import COARSE_REL
from trueline.comparison.judgement.values.distance import Distance
from trueline.comparison.op_names import RANDOM, function_of
from trueline.judge.recorded.step_values import Value

DRAWN = "random numbers of another dtype, of which torch draws others from the same seed"

MADE_COARSELY = "made in another dtype by code that was not recorded"

TURNED = "a decision that rounding turned for a few numbers, of which each gradient goes elsewhere"

_MOST_TURNED, _MOST_TURNED_FRAC = 4, 1e-3
"""Decisions that rounding turns: at most so many, or of the numbers as many as have a part in 1,000 of the usual size.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two values that differ by ``distance`` where ``expectation`` is what rounding explains."""

    run_value: Value
    ref_value: Value
    expectation: Expectation
    distance: Distance

    @property
    def of_two_floats(self) -> bool:
        """True for values of two floating dtypes."""
        dtype, ref_dtype = self.run_value.dtype, self.ref_value.dtype
        return dtype != ref_dtype and dtype in UNIT_ROUNDOFF and ref_dtype in UNIT_ROUNDOFF

    @property
    def is_turned(self) -> bool:
        """True where gradients differ as they do where few numbers got theirs in one run alone, or in another place: as
        many zeros more or less, and norms and sums no farther apart than these numbers explain.
        """
        stats, ref_stats, distance = self.run_value.stats, self.ref_value.stats, self.distance
        largest = max(self.run_value.largest or 0.0, self.ref_value.largest or 0.0)
        if stats is None or ref_stats is None or distance.rel is None or distance.nonfinite_differ or not largest:
            return False
        num = abs(stats.zero - ref_stats.zero)
        if num > max(_MOST_TURNED, _MOST_TURNED_FRAC * stats.numel) or not (num or distance.reordered):
            return False
        num += 1  # two may turn in opposite ways
        # Each turned number moves at most the largest one in or out.
        sums_agree = abs((stats.sum or 0.0) - (ref_stats.sum or 0.0)) <= 2 * num * largest
        squares_agree = abs((stats.sum_sq or 0.0) - (ref_stats.sum_sq or 0.0)) <= num * largest**2
        return sums_agree and squares_agree and distance.rel * ref_stats.norm <= 3 * math.sqrt(2 * num) * largest

    def is_drawn_in_another_dtype(self, value: Value) -> bool:
        """True for random numbers that one call draws in two dtypes: torch draws other numbers then, though from one
        seed.
        """
        if not value.returned or value.kind != "op" or function_of(value.api) not in RANDOM:
            return False
        return self.run_value.dtype != self.ref_value.dtype and self.run_value.args == self.ref_value.args

    def may_be_drawn_in_another_dtype(self, value: Value, compiled: Collection[str]) -> bool:
        """True where code that was not recorded, as that of a ``compiled`` module, made values of two dtypes so
        differently that random numbers may do.
        """
        in_compiled = value.returned and value.site.name in compiled
        unseen = (self.expectation.origin == "unrecorded" or in_compiled) and value.site.phase == "fwd"
        return unseen and self.of_two_floats and (self.distance.rel or 0.0) > COARSE_REL

    def may_be_made_coarsely(self, value: Value) -> bool:
        """True where code before the model, of which nothing was recorded as only calls of modules were, may have lost
        as much by computing in the coarser of two dtypes: how often it rounds, and what cancels, is not known.
        """
        unseen = self.expectation.origin == "given" and value.site.phase == "fwd"
        return unseen and self.of_two_floats and (self.distance.rel or math.inf) <= COARSE_REL


def excuse(
    difference: Difference, value: Value, *, may_turn: bool, compiled: Collection[str], of_modules: bool
) -> tuple[Expectation, str] | None:
    """The expectation that excuses a difference beyond rounding, and the note on it; None where nothing excuses it.

    ``value`` is the one on the side that gives the order. ``may_turn``: it is a gradient of a call that decides by its
    inputs. ``compiled`` are modules that a run compiled; ``of_modules``: only calls of modules were recorded.
    """
    expectation, rel = difference.expectation, difference.distance.rel or 0.0
    # A turned decision is looked for first, as it explains the most exactly.
    if may_turn and difference.is_turned:
        return replace(expectation, rel=max(expectation.rel, rel)), TURNED
    if difference.is_drawn_in_another_dtype(value) or difference.may_be_drawn_in_another_dtype(value, compiled):
        return replace(expectation, rel=UNRELATED, decided=True), DRAWN
    if of_modules and difference.may_be_made_coarsely(value):
        return replace(expectation, rel=rel), MADE_COARSELY
    return None
