"""The values of one step of two runs beside each other."""

from __future__ import annotations

from dataclasses import dataclass

from trueline.analyze.matching import Side, Twins, matched, values_beside
from trueline.analyze.naming import NameMap, vocabularies
from trueline.analyze.values import Call, StepValues, Value
from trueline.schema.errors import AlignmentError


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
    pairs: list[Pair] = []
    for call, twin in twins:
        pairs += _pairs(call, twin)
    _require_some(mine, theirs, pairs)
    return Alignment(_in_order(pairs), _calls_in_order(twins))


def _pairs(call: Call | None, twin: Call | None) -> list[Pair]:
    if call is not None and twin is not None:
        return [Pair(*pair, _reason(pair[0], pair[1])) for pair in values_beside(call, twin)]
    if call is not None:
        return [Pair(value, None, _reason(value, None)) for value in call.values]
    return [Pair(None, value, _reason(None, value)) for value in (twin.values if twin is not None else ())]


def _reason(mine: Value | None, theirs: Value | None) -> str:
    if mine is not None and theirs is not None:
        return ""
    return "only in RUN" if mine is not None else "only in REF"


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


def _require_some(mine: StepValues, theirs: StepValues, pairs: list[Pair]) -> None:
    if any(pair.mine is not None and pair.theirs is not None for pair in pairs):
        return
    a, b = (next((value.site.name for value in side.values), "") for side in (mine, theirs))
    raise AlignmentError(
        f"0 of {len(theirs.values):,} sites of '{theirs.label}' exist in '{mine.label}'. '{mine.label}' has '{a}', "
        f"'{theirs.label}' has '{b}'. Pass --map or record again."
    )
