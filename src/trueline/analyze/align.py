"""The values of one step of two runs beside each other."""

from __future__ import annotations

from dataclasses import dataclass

from trueline.analyze.lonely import Reasons, aligned_places, nothing_aligned
from trueline.analyze.matching import Side, Twins, matched, values_beside
from trueline.analyze.naming import NameMap, vocabularies
from trueline.analyze.values import Call, StepValues, Value


@dataclass(frozen=True, slots=True)
class Pair:
    """A value beside its twin; where one is None, ``reason`` says why there is none."""

    mine: Value | None
    theirs: Value | None
    reason: str = ""


@dataclass(frozen=True)
class Alignment:
    """``pairs`` has every value of both sides once, in the order of execution of ``mine``; a value that only the other
    side has follows what it follows there. ``calls`` the same for calls.
    """

    pairs: list[Pair]
    calls: Twins


def align(mine: StepValues, theirs: StepValues, names: NameMap) -> Alignment:
    """The values of ``mine`` (of the run) beside those of ``theirs`` (of the reference), names as ``names`` has them.

    Raises ``AlignmentError`` where nothing of the two models aligns.
    """
    words, other_words = vocabularies(mine.values, theirs.values, names)
    one, other = Side(mine, words), Side(theirs, other_words)
    twins = matched(one, other)
    reasons = Reasons(one, other, "RUN", "REF"), Reasons(other, one, "REF", "RUN")
    pairs = [pair for call, twin in twins for pair in _pairs(call, twin, *reasons)]
    both = [(pair.mine, pair.theirs) for pair in pairs if pair.mine is not None and pair.theirs is not None]
    comparable = (one.has_places and other.has_places) or not both
    if mine.values and theirs.values and comparable and not aligned_places(both, words):
        raise nothing_aligned(mine, theirs, words, other_words)
    return Alignment(_in_order(pairs), _calls_in_order(twins))


def _pairs(call: Call | None, twin: Call | None, mine: Reasons, theirs: Reasons) -> list[Pair]:
    if call is not None and twin is not None:
        beside = values_beside(call, twin)
    else:
        beside = [(value, None) for value in (call.values if call is not None else ())]
        beside += [(None, value) for value in (twin.values if twin is not None else ())]
    called = call is not None and twin is not None
    return [_pair(value, other, mine, theirs, called=called) for value, other in beside]


def _pair(value: Value | None, other: Value | None, mine: Reasons, theirs: Reasons, *, called: bool) -> Pair:
    if value is not None:
        return Pair(value, other, mine.of(value, called=called) if other is None else "")
    return Pair(value, other, theirs.of(other, called=called) if other is not None else "")


def _in_order(pairs: list[Pair]) -> list[Pair]:
    place = {pair.theirs.index: pair.mine.index for pair in pairs if pair.mine is not None and pair.theirs is not None}
    after = _followed(place, [pair.theirs.index for pair in pairs if pair.theirs is not None])

    def at(pair: Pair) -> tuple[int, int, int]:
        if pair.mine is not None:
            return pair.mine.index, 0, 0
        return (after[pair.theirs.index], 1, pair.theirs.index) if pair.theirs is not None else (-1, 1, 0)

    return sorted(pairs, key=at)


def _calls_in_order(twins: Twins) -> Twins:
    place = {twin.first.index: call.first.index for call, twin in twins if call is not None and twin is not None}
    after = _followed(place, [twin.first.index for _, twin in twins if twin is not None])

    def at(pair: tuple[Call | None, Call | None]) -> tuple[int, int, int]:
        call, twin = pair
        if call is not None:
            return call.first.index, 0, 0
        return (after[twin.first.index], 1, twin.first.index) if twin is not None else (-1, 1, 0)

    return sorted(twins, key=at)


def _followed(place: dict[int, int], theirs: list[int]) -> dict[int, int]:
    """For each index of theirs without a ``place`` in mine: that of the nearest one before it that has one, or -1."""
    found: dict[int, int] = {}
    last = -1
    for index in sorted(theirs):
        if index in place:
            last = place[index]
        else:
            found[index] = last
    return found
