"""Differences of the call graphs of two aligned steps: calls of one run alone, and inputs from another call.

Two matched values are *of one origin* where the same pair of calls returned them, or no call did. A *seam* is a value
that a call takes, or a module returns, from another origin than its twin: there a difference of the graphs shows. Calls
without a twin that lead to the seam, in either run, are the difference; where there are none, it is the seam itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trueline.comparison.match.align import Alignment
from trueline.judge.recorded.step_values import Call, CallKey, StepValues, Value, key_of

_PHASE = "fwd"
"""Phase whose calls are compared; the calls of the others follow from it."""


@dataclass(frozen=True, eq=False)
class Seam:
    """Two matched values of different origin, returned by the calls ``mine_of`` and ``theirs_of``, None: by none."""

    mine: Value
    theirs: Value
    mine_of: Call | None
    theirs_of: Call | None


@dataclass(frozen=True, eq=False)
class GraphDifference:
    """Calls of the run alone (``mine``) and of the reference alone (``theirs``) that lead to ``seam``, in order."""

    mine: Sequence[Call]
    theirs: Sequence[Call]
    seam: Seam | None = None


class GraphDiff:
    """Seams of ``alignment`` by the indices of their two values, and the calls without a twin that lead to them."""

    def __init__(self, alignment: Alignment) -> None:
        self._graphs = tuple(
            _Graph(step, [(pair[side], pair[1 - side] is None) for pair in alignment.calls])
            for side, step in enumerate(alignment.sides)
        )
        self._root_of = _twin_roots(alignment)
        self.seams = {(seam.mine.index, seam.theirs.index): seam for seam in self._seams(alignment)}

    def leading_to(self, seam: Seam, excused: Sequence[set[CallKey]] = (set(), set())) -> GraphDifference:
        """Calls without a twin that lead to ``seam``, but for those of either run that are ``excused``."""
        leading = [
            [call for call in graph.alone_before(maker) if call.key not in excused[side]]
            for side, (graph, maker) in enumerate(self._makers(seam))
        ]
        run_calls, ref_calls = (sorted(calls, key=lambda call: call.first.index) for calls in leading)
        return GraphDifference(run_calls, ref_calls, seam)

    def keys_before(self, seam: Seam) -> tuple[set[CallKey], set[CallKey]]:
        """Keys of the calls without a twin that lead to ``seam``, of the run and of the reference."""
        run_keys, ref_keys = ({call.key for call in graph.alone_before(maker)} for graph, maker in self._makers(seam))
        return run_keys, ref_keys

    def inputs_of(self, seam: Seam) -> Iterator[int]:
        """Roots of values that calls without a twin take from matched calls on the way to ``seam``, else of its own.

        Roots of the reference are given as those of their twins in the run; -1 without a twin.
        """
        for side, ((graph, maker), value) in enumerate(zip(self._makers(seam), (seam.mine, seam.theirs), strict=True)):
            calls = graph.alone_before(maker)
            for source in [taken_value for call in calls for taken_value in call.ins] if calls else [value]:
                if not graph.is_alone(graph.maker(source)):
                    yield source.root if side == 0 else self._root_of.get(source.root, -1)

    def takes_over(self, call: Call, seam: Seam, side: int) -> bool:
        """Tell whether ``call``, of one ``side`` alone (0: the run), takes the value that the other has at ``seam``."""
        seam_value = seam.theirs if side == 0 else seam.mine
        root = self._root_of.get(seam_value.root) if side == 0 else seam_value.root
        for value in call.ins:
            if root is not None and root == (value.root if side == 0 else self._root_of.get(value.root)):
                return True
            # A copy that was not recorded has another root and the same numbers.
            if value.stats is not None and value.stats == seam_value.stats:
                return True
        return False

    @property
    def alone(self) -> GraphDifference:
        """All calls without a twin."""
        run_graph, ref_graph = self._graphs
        return GraphDifference(run_graph.alone, ref_graph.alone)

    def _makers(self, seam: Seam) -> Iterator[tuple[_Graph, Call | None]]:
        return zip(self._graphs, (seam.mine_of, seam.theirs_of), strict=True)

    def _seams(self, alignment: Alignment) -> Iterator[Seam]:
        run_graph, ref_graph = self._graphs
        pairs = [(value, twin) for value, twin, _ in alignment.pairs if value is not None and twin is not None]
        of_one_origin = {
            (value.index, twin.index) for value, twin in pairs if value.index == value.root and twin.index == twin.root
        }
        for value, twin in pairs:
            if (value.root, twin.root) in of_one_origin or (value.returned and value.kind != "module"):
                continue
            calls = run_graph.call_of(value), ref_graph.call_of(twin)
            if None in calls:
                continue
            makers = run_graph.maker(value), ref_graph.maker(twin)
            if makers != (None, None) and calls[0] is not makers[0] and calls[1] is not makers[1]:
                yield Seam(value, twin, *makers)


class _Graph:
    """Forward calls of one side, the call that first returned each value, and the calls ``alone``, without a twin."""

    def __init__(self, step: StepValues, calls: Sequence[tuple[Call | None, bool]]) -> None:
        self._values = step.values
        forward = [(call, is_alone) for call, is_alone in calls if call is not None and _is_forward_call(call)]
        self._by_key = {call.key: call for call, _ in forward}
        self.alone = [call for call, is_alone in forward if is_alone]
        self._keys_alone = {call.key for call in self.alone}
        self._before: dict[CallKey, list[Call]] = {}

    def is_alone(self, call: Call | None) -> bool:
        """Tell whether a call has no twin."""
        return call is not None and call.key in self._keys_alone

    def call_of(self, value: Value) -> Call | None:
        """Call that a value belongs to; None outside of this graph."""
        return self._by_key.get(key_of(value))

    def maker(self, value: Value) -> Call | None:
        """Call of this graph that first returned the value; None without one."""
        first = self._values[value.root]
        return self.call_of(first) if first.returned else None

    def alone_before(self, call: Call | None) -> list[Call]:
        """``call`` and the calls before it that its inputs come from, back to the first with a twin."""
        if call is None or not self.is_alone(call):
            return []
        calls = self._before.get(call.key)
        if calls is None:
            calls_by_key, frontier = {call.key: call}, [call]
            while frontier:
                for value in frontier.pop().values:
                    maker = self.maker(value)
                    if maker is not None and self.is_alone(maker) and maker.key not in calls_by_key:
                        calls_by_key[maker.key] = maker
                        frontier.append(maker)
            calls = self._before[call.key] = list(calls_by_key.values())
        return calls


def _is_forward_call(call: Call) -> bool:
    first = call.first
    return call.phase == _PHASE and first.kind in ("op", "module") and "recomputed" not in first.flags


def _twin_roots(alignment: Alignment) -> dict[int, int]:
    """Root in the run by root in the reference, as matched at the first sighting."""
    return {
        twin.root: value.root
        for value, twin, _ in alignment.pairs
        if value is not None and twin is not None and twin.index == twin.root
    }
