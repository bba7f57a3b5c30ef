"""Where the call graphs of two aligned steps differ: calls that one run has alone, and inputs from another call.

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
"""The phase whose calls are compared; what runs in the others follows from it."""


@dataclass(frozen=True, eq=False)
class Seam:
    """Two matched values of different origin: the calls ``mine_of`` and ``theirs_of`` returned them, None where no call
    did.
    """

    mine: Value
    theirs: Value
    mine_of: Call | None
    theirs_of: Call | None


@dataclass(frozen=True, eq=False)
class GraphDifference:
    """Calls that only the run (``mine``) or only the reference (``theirs``) has and that lead to ``seam``, in order."""

    mine: Sequence[Call]
    theirs: Sequence[Call]
    seam: Seam | None = None


class GraphDiff:
    """The seams of ``alignment`` by the indices of their two values, and the calls without a twin that lead to them."""

    def __init__(self, alignment: Alignment) -> None:
        self._graphs = tuple(
            _Graph(step, [(pair[which], pair[1 - which] is None) for pair in alignment.calls])
            for which, step in enumerate(alignment.sides)
        )
        self._root_of = _twin_roots(alignment)
        self.seams = {(seam.mine.index, seam.theirs.index): seam for seam in self._seams(alignment)}

    def leading_to(self, seam: Seam, excused: Sequence[set[CallKey]] = (set(), set())) -> GraphDifference:
        """The calls without a twin that lead to ``seam``, without those of either run that are ``excused``."""
        found = [
            [call for call in graph.alone_before(maker) if call.key not in excused[which]]
            for which, (graph, maker) in enumerate(self._makers(seam))
        ]
        mine, theirs = (sorted(calls, key=lambda call: call.first.index) for calls in found)
        return GraphDifference(mine, theirs, seam)

    def keys_before(self, seam: Seam) -> tuple[set[CallKey], set[CallKey]]:
        """The keys of the same calls, of the run and of the reference."""
        one, other = ({call.key for call in graph.alone_before(maker)} for graph, maker in self._makers(seam))
        return one, other

    def inputs_of(self, seam: Seam) -> Iterator[int]:
        """Roots, of the run or as the run has those of the reference, of what these calls take from matched calls; of
        what is taken at the seam where there are none.
        """
        for which, ((graph, maker), value) in enumerate(zip(self._makers(seam), (seam.mine, seam.theirs), strict=True)):
            calls = graph.alone_before(maker)
            for each in [each for call in calls for each in call.ins] if calls else [value]:
                if not graph.is_alone(graph.maker(each)):
                    yield each.root if which == 0 else self._root_of.get(each.root, -1)

    def takes_over(self, call: Call, seam: Seam, which: int) -> bool:
        """Whether ``call``, which only one side (0: the run) has, takes the value that the other has at ``seam``."""
        handed = seam.theirs if which == 0 else seam.mine
        root = self._root_of.get(handed.root) if which == 0 else handed.root
        for value in call.ins:
            if root is not None and root == (value.root if which == 0 else self._root_of.get(value.root)):
                return True
            if value.stats is not None and value.stats == handed.stats:
                return True
        return False

    @property
    def alone(self) -> GraphDifference:
        """All calls without a twin."""
        mine, theirs = self._graphs
        return GraphDifference(mine.alone, theirs.alone)

    def _makers(self, seam: Seam) -> Iterator[tuple[_Graph, Call | None]]:
        return zip(self._graphs, (seam.mine_of, seam.theirs_of), strict=True)

    def _seams(self, alignment: Alignment) -> Iterator[Seam]:
        mine, theirs = self._graphs
        pairs = [(one, other) for one, other, _ in alignment.pairs if one is not None and other is not None]
        of_one_origin = {
            (one.index, other.index) for one, other in pairs if one.index == one.root and other.index == other.root
        }
        for one, other in pairs:
            if (one.root, other.root) in of_one_origin or (one.returned and one.kind != "module"):
                continue
            calls = mine.call_of(one), theirs.call_of(other)
            if None in calls:
                continue
            makers = mine.maker(one), theirs.maker(other)
            if makers != (None, None) and calls[0] is not makers[0] and calls[1] is not makers[1]:
                yield Seam(one, other, *makers)


class _Graph:
    """The forward calls of one side, which of them returned each value first, and which are ``alone``: have no twin."""

    def __init__(self, step: StepValues, calls: Sequence[tuple[Call | None, bool]]) -> None:
        self._values = step.values
        known = [(call, alone) for call, alone in calls if call is not None and _is_of_graph(call)]
        self._by_key = {call.key: call for call, _ in known}
        self.alone = [call for call, alone in known if alone]
        self._alone = {call.key for call in self.alone}
        self._before: dict[CallKey, list[Call]] = {}

    def is_alone(self, call: Call | None) -> bool:
        """Whether a call has no twin."""
        return call is not None and call.key in self._alone

    def call_of(self, value: Value) -> Call | None:
        """The call that a value belongs to; None where it is not of this graph."""
        return self._by_key.get(key_of(value))

    def maker(self, value: Value) -> Call | None:
        """The call that returned the value first; None where none of this graph did."""
        first = self._values[value.root]
        return self.call_of(first) if first.returned else None

    def alone_before(self, call: Call | None) -> list[Call]:
        """``call`` and the calls before it that its inputs come from, as long as they have no twin."""
        if call is None or not self.is_alone(call):
            return []
        known = self._before.get(call.key)
        if known is None:
            found, waiting = {call.key: call}, [call]
            while waiting:
                for value in waiting.pop().values:
                    maker = self.maker(value)
                    if maker is not None and self.is_alone(maker) and maker.key not in found:
                        found[maker.key] = maker
                        waiting.append(maker)
            known = self._before[call.key] = list(found.values())
        return known


def _is_of_graph(call: Call) -> bool:
    first = call.first
    return call.phase == _PHASE and first.kind in ("op", "module") and "recomputed" not in first.flags


def _twin_roots(alignment: Alignment) -> dict[int, int]:
    """By root of the reference, that of the run that it is matched with at its first sighting."""
    return {
        other.root: one.root
        for one, other, _ in alignment.pairs
        if one is not None and other is not None and other.index == other.root
    }
