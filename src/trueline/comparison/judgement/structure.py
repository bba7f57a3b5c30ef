"""Which difference of the two call graphs has consequences: values after it differ, as far as the final results.

The calls of the forward pass are followed in order. A difference of the graphs reaches the seam that it leads to, and
from there whatever does not agree with its twin; where a call that takes other inputs returns the same as in the
reference, as the other order of two additions does, it ends. What differs for another reason is no difference's
consequence. Of differences that reach one value the first one counts.
A call without a twin is excused where values that come from it agree: another way to compute the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeGuard

from trueline.comparison.expect.propagation import is_masked, is_swamped
from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.comparison.judgement.consequence import results_agree
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.match.graph_diff import GraphDifference, Seam
from trueline.comparison.op_names import function_of, op_class_of
from trueline.judge.recorded.step_values import Call, CallKey, Value, key_of


class Reach(NamedTuple):
    """A difference of the graphs that reaches a value, and the ``place`` of the step's rows where it begins."""

    position: float
    difference: GraphDifference


class StructureCause(NamedTuple):
    """A ``difference`` of the graphs, the ``place`` where it begins, the ``row`` to show of it, and the first row
    ``after`` it that differs.
    """

    difference: GraphDifference
    position: float
    row: Compared
    after: Compared


@dataclass(frozen=True, eq=False)
class Structure:
    """The differences of the graphs of ``step``, and what they reach."""

    step: Step

    def cause(self) -> StructureCause | None:
        """The difference that the first value beyond rounding, the loss, what another module returns, or a value that
        nothing can have made right again comes from; None where there is none.
        """
        if self.step.alignment.connects_alike or not self.step.graph_diff.seams:
            return None
        first = self.step.first
        rows = [*self._results, *self._handed_on, *self._never_undone, *([] if first is None else [first])]
        reaches = (self._reached[row.position] for row in rows if row.position in self._reached)
        reach = min(reaches, key=_position_of, default=None)
        # What begins after the first value beyond rounding cannot have caused it.
        if reach is None or (first is not None and reach.position > first.position):
            return None
        reached = (row for row in self.step.rows if self._is_reached_by(row, reach))
        after = next((row for row in reached if is_apart(row)), None)
        if after is None:
            return None
        return StructureCause(reach.difference, reach.position, self._row(reach.difference), after)

    def passing_on(
        self, calls: tuple[Call, Call] | None, functions: frozenset[str] | None
    ) -> tuple[GraphDifference, Compared] | None:
        """Calls of ``functions`` (None: of any) without a twin that take what one of the matched ``calls`` took or
        returned, and the row to show of them.
        """
        if calls is None:
            return None
        return self.taking(*({value.root for value in call.values} for call in calls), functions=functions)

    def taking(
        self, roots: set[int], ref_roots: set[int], *, functions: frozenset[str] | None = None
    ) -> tuple[GraphDifference, Compared] | None:
        """Calls of ``functions`` (None: of any) without a twin that take a value with one of ``roots`` of the run or of
        ``ref_roots`` of the reference, and the row to show of them.
        """
        alone = self.step.graph_diff.alone
        takers: list[list[Call]] = []
        for roots_of_side, calls in ((roots, alone.mine), (ref_roots, alone.theirs)):
            candidates = [call for call in calls if functions is None or function_of(call.first.api) in functions]
            takers.append([call for call in candidates if roots_of_side & {value.root for value in call.ins}])
        difference = GraphDifference(takers[0], takers[1])
        return (difference, self._row(difference)) if any(takers) else None

    def position_of(self, row: Compared) -> float:
        """The place of ``row`` in the order of execution; of a value that only the side has that does not give the
        order, that of the next one of its side that has a place there.
        """
        return self._positions[row.run_value is None][row.value.index]

    def _is_reached_by(self, row: Compared, reach: Reach) -> bool:
        return row.position in self._reached and self._reached[row.position].difference is reach.difference

    @cached_property
    def _results(self) -> list[Compared]:
        """The last value of the forward pass that was measured of each micro-batch, where it differs, or rounding may
        explain too much.
        """
        measured = (row for row in self.step.rows if row.run_value is not None and row.distance is not None)
        last = {row.value.site.micro: row for row in measured if row.value.site.phase == "fwd"}
        return [row for row in last.values() if not _agrees(row)]

    @cached_property
    def _handed_on(self) -> list[Compared]:
        """Results of modules that took nothing but what a difference of the graphs outside of them changed."""
        results = (row for row, value, _ in self._matched if row.rewired and value.kind == "module" and value.returned)
        return [row for row in results if self._is_outside(row)]

    @cached_property
    def _never_undone(self) -> list[Compared]:
        """Values at the seam of the only difference of the graphs, between runs whose parameters and arguments agree:
        no other call makes them right again, and that results agree up to coarse rounding does not excuse them. Where
        no call is alone, and they are only connected otherwise, sums may have their addends in another order.
        """
        pairs = [(call, twin) for call, twin in self.step.alignment.calls if call and twin and call.phase == "fwd"]
        params = (row for row in self.step.rows if row.value.site.phase == "param")
        # Other arguments, or parameters, may explain what differs at the seam.
        if any(call.first.args != twin.first.args for call, twin in pairs) or results_agree(self.step.rows):
            return []
        alone = _keys(self.step.graph_diff.alone)
        if any(row.judgement != "equal" for row in params):
            return []
        seams = [
            row
            for row, value, seam in self._matched
            if seam is not None and row.rewired and _shows_all(row) and (any(alone) or not _takes_in_any_order(value))
        ]
        return [
            row
            for row in seams
            if row.position in self._reached and _keys(self._reached[row.position].difference) == alone
        ]

    def _is_outside(self, row: Compared) -> bool:
        """True where the difference that reaches the result of a module is of calls outside of it."""
        reach = self._reached.get(row.position)
        if reach is None:
            return False
        name = row.value.site.name
        calls = [*reach.difference.mine, *reach.difference.theirs]
        return bool(calls) and not any(f"{call.module}.".startswith(f"{name}.") for call in calls)

    @cached_property
    def _matched(self) -> list[tuple[Compared, Value, Seam | None]]:
        """Values of the forward pass that have a twin, in order, with the run's value and the seam that they are."""
        rows = ((row, row.run_value, row.ref_value) for row in self.step.rows)
        return [
            (row, value, self.step.graph_diff.seams.get((value.index, ref_value.index)))
            for row, value, ref_value in rows
            if value is not None and ref_value is not None and value.site.phase == "fwd"
        ]

    @cached_property
    def _excused(self) -> tuple[set[CallKey], set[CallKey]]:
        """Calls without a twin, of the run and of the reference, that lead to values (no decisions) which agree and of
        which calls make the same as in the reference.
        """
        differ: dict[CallKey, bool] = defaultdict(bool)
        for row, value, _ in self._matched:
            differ[key_of(value)] |= value.returned and not _agrees(row)
        excused: tuple[set[CallKey], set[CallKey]] = (set(), set())
        for row, value, seam in self._matched:
            # Decisions have no rounding and few values: that they agree may be chance.
            if seam is not None and _agrees(row) and not differ[key_of(value)] and value.dtype in UNIT_ROUNDOFF:
                for excused_keys, keys in zip(excused, self.step.graph_diff.keys_before(seam), strict=True):
                    excused_keys |= keys
        return excused

    @cached_property
    def _reached(self) -> dict[int, Reach]:
        """By place of a row that does not agree with its twin: the difference that it comes from."""
        origin: dict[int, Reach] = {}
        reach_of_call: dict[CallKey, Reach] = {}
        reach_of_position: dict[int, Reach] = {}
        unexplained: set[int] = {row.run_value.root for row in self.step.beyond("param") if row.run_value is not None}
        for row, value, seam in self._matched:
            key = key_of(value)
            at_seam = None if seam is None else self._through(row, seam, origin, unexplained)
            reaches = [reach for reach in (at_seam, origin.get(value.root)) if reach is not None]
            # A result that was seen before is none that this call made.
            if key in reach_of_call and (not value.returned or value.index == value.root):
                reaches.append(reach_of_call[key])
            if not reaches and seam is None and not _agrees(row) and value.index == value.root:
                # A tensor that was seen before may agree there, and differ as only one run wrote.
                unexplained.add(value.root)
            if not reaches or (_agrees(row) and (value.returned or at_seam is None)):
                continue
            # Of several differences the first one counts: the others may follow from it.
            first = min(reaches, key=_position_of)
            if value.returned:
                origin[value.root] = first
            else:
                reach_of_call[key] = first
            if not _agrees(row):
                reach_of_position[row.position] = first
        return reach_of_position

    def _through(self, row: Compared, seam: Seam, origin: dict[int, Reach], unexplained: set[int]) -> Reach | None:
        """The reach of a value through a seam: the difference there, or an earlier one that its calls took; None where
        they took what is ``unexplained`` for another reason.
        """
        inputs = list(self.step.graph_diff.inputs_of(seam))
        if any(root in unexplained and root not in origin for root in inputs):
            return None
        difference = self.step.graph_diff.leading_to(seam, self._excused)
        if _agrees(row) and (None in (seam.mine_of, seam.theirs_of) or not _may_reorder(row, difference)):
            return None
        before = [origin[root] for root in inputs if root in origin]
        return min([*before, Reach(self._begins(difference, seam), difference)], key=_position_of)

    def _begins(self, difference: GraphDifference, seam: Seam) -> float:
        calls = ((side, call) for side, calls in enumerate((difference.mine, difference.theirs)) for call in calls)
        alone = [self._positions[side][call.first.index] for side, call in calls]
        return min(alone, default=self._positions[0][seam.mine.index])

    @cached_property
    def _positions(self) -> tuple[dict[int, float], dict[int, float]]:
        """The place of each value of the run and of the reference, by index: of those that only the side has that does
        not give the order, the place of the next one that has a twin.
        """
        positions: tuple[dict[int, float], dict[int, float]] = ({}, {})
        for row in self.step.rows:
            for side, value in enumerate((row.run_value, row.ref_value)):
                if value is not None and row.root is not None:
                    positions[side][value.index] = row.position
        for side, step in enumerate(self.step.alignment.sides):
            after = float(len(self.step.rows))
            # Backwards, so that a value of one side takes the position of the next one that has a twin.
            for value in reversed(step.values):
                after = positions[side].setdefault(value.index, after)
        return positions

    def _row(self, difference: GraphDifference) -> Compared:
        """The row of the first call that only the run has, else that only the reference has, else of the seam. Of those
        that the script makes outside of the model the one counts that takes what the other run hands on as it is.
        """
        seam, graph = difference.seam, self.step.graph_diff
        for side, calls in enumerate((innermost(difference.mine), innermost(difference.theirs))):
            if calls:
                script_calls = [call for call in calls if seam is not None and not call.module]
                call = next((call for call in script_calls if seam and graph.takes_over(call, seam, side)), calls[0])
                return self._row_of((call.outs or call.values)[0], side)
        assert difference.seam is not None
        return self._row_of(difference.seam.mine, 0)

    def _row_of(self, value: Value, side: int) -> Compared:
        values = ((row, (row.run_value, row.ref_value)[side]) for row in self.step.rows)
        return next(row for row, side_value in values if side_value is not None and side_value.index == value.index)


def calls_alone(step: Step, phase: str) -> GraphDifference:
    """All calls of a ``phase`` that only one run makes."""
    pairs = step.alignment.calls
    return GraphDifference(
        [call for call, twin in pairs if twin is None and _is_in_phase(call, phase)],
        [twin for call, twin in pairs if call is None and _is_in_phase(twin, phase)],
    )


def _is_in_phase(call: Call | None, phase: str) -> TypeGuard[Call]:
    return call is not None and call.phase == phase and call.first.kind != "param"


def innermost(calls: Sequence[Call]) -> list[Call]:
    """Calls without those of modules, where there are others."""
    return [call for call in calls if call.first.kind == "op"] or list(calls)


def agrees(row: Compared) -> bool:
    """True where a value is as in the reference, up to rounding."""
    return row.judgement in ("equal", "within")


def _agrees(row: Compared) -> bool:
    """True where a value agrees, and rounding does not explain so much that a fault would not show."""
    return agrees(row) and not row.is_coarse


def is_apart(row: Compared) -> bool:
    """True where it is known that rounding does not explain how a value differs."""
    return row.judgement in ("beyond", "propagated") or row.rewired


def _may_reorder(row: Compared, difference: GraphDifference) -> bool:
    """True where a value may have the same numbers in another order, which statistics do not show: where calls that
    only move numbers are the difference.
    """
    measured = row.distance is not None and row.distance.how == "tensor"
    calls = innermost([*difference.mine, *difference.theirs])
    return not measured and all(op_class_of(function_of(call.first.api)) == "exact" for call in calls)


_IN_ANY_ORDER = frozenset({"add", "sub", "mul", "cat", "stack", "maximum", "minimum"})
"""Functions of which several in a row may take their operands in another order; sums and scattered ones beside."""


def _takes_in_any_order(value: Value) -> bool:
    function = function_of(value.api)
    return function in _IN_ANY_ORDER or op_class_of(function) in ("sum", "scatter")


def _shows_all(row: Compared) -> bool:
    """True where no number of a value is so large, or not finite, that it may stand for none: a mask."""
    values = [value for value in (row.run_value, row.ref_value) if value is not None]
    nonfinite = row.distance is not None and row.distance.nonfinite_differ
    return not nonfinite and not any(is_masked(value) or is_swamped(value) for value in values)


def _keys(difference: GraphDifference) -> tuple[set[CallKey], set[CallKey]]:
    return {call.key for call in difference.mine}, {call.key for call in difference.theirs}


def _position_of(reach: Reach) -> float:
    return reach.position
