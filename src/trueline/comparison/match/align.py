"""Which value of one run is which of the other, in one step of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter, eq
from typing import NamedTuple, TypeVar

from trueline.comparison.match.call_pairs import Shapes, Side, Twins, matched, matched_values, own_shape
from trueline.comparison.match.names import NameMap, shared_names
from trueline.comparison.match.unmatched import Reasons, is_inside, nothing_aligned
from trueline.judge.recorded.step_values import Call, StepValues, Value

Item = TypeVar("Item")


class Pair(NamedTuple):
    """A value and its twin in the other run; where one is None, ``reason`` says why there is none."""

    mine: Value | None
    theirs: Value | None
    reason: str = ""


@dataclass(frozen=True)
class Alignment:
    """The values of ``mine`` (of the run) matched with those of ``theirs`` (of the reference).

    ``pairs`` has every value of both sides once, in the order of execution of ``mine``; a value that only the other
    side has follows what it follows there. ``calls`` the same for calls. ``loss_scale`` is what gradients of the run
    before the update were divided by to be comparable.
    """

    mine: StepValues
    theirs: StepValues
    pairs: list[Pair]
    calls: Twins
    loss_scale: float = 1.0

    @property
    def sides(self) -> tuple[StepValues, StepValues]:
        """The step of the run, and that of the reference."""
        return self.mine, self.theirs

    @cached_property
    def connects_alike(self) -> bool:
        """Whether every value has a twin, in the same place and seen before in the same place."""
        return all(
            one is not None and other is not None and one.index == other.index and one.root == other.root
            for one, other, _ in self.pairs
        )

    @property
    def twins(self) -> list[tuple[int, int]]:
        """The indices of each two values that were matched."""
        return [(mine.index, theirs.index) for mine, theirs, _ in self.pairs if mine is not None and theirs is not None]

    def of(self, mine: StepValues, theirs: StepValues) -> Alignment:
        """The same alignment of two steps whose values have taken the places of those that were aligned."""
        if mine is self.mine and theirs is self.theirs:
            return self

        def call_of(step: StepValues, call: Call | None) -> Call | None:
            return None if call is None else replace(call, values=[step.values[value.index] for value in call.values])

        def value_of(step: StepValues, value: Value | None) -> Value | None:
            return None if value is None else step.values[value.index]

        pairs = [Pair(value_of(mine, one), value_of(theirs, other), reason) for one, other, reason in self.pairs]
        return Alignment(
            mine, theirs, pairs, [(call_of(mine, one), call_of(theirs, other)) for one, other in self.calls]
        )


def align(
    mine: StepValues, theirs: StepValues, names: NameMap, *, shapes: tuple[Shapes, Shapes] = (own_shape, own_shape)
) -> Alignment:
    """The alignment of two steps, names as ``names`` has them; ``shapes`` gives those that values of each may have.

    Raises ``AlignmentError`` where nothing of the two models aligns.
    """
    same_layout = _laid_out_alike(mine.values, theirs.values)
    words, other_words = shared_names(mine.values, mine.values if same_layout else theirs.values, names)
    if same_layout:
        calls: Twins = [*zip(mine.calls(), theirs.calls(), strict=True)]
        found = Alignment(mine, theirs, [*map(Pair, mine.values, theirs.values)], calls)
    else:
        found = Alignment(mine, theirs, *_matched(Side(mine, words, shapes[0]), Side(theirs, other_words, shapes[1])))
    if mine.values and theirs.values and not _is_of_one_model(found, words):
        raise nothing_aligned(mine, theirs, words, other_words)
    return found


_LAYOUT = attrgetter(
    *("site.micro", "site.phase", "site.name", "site.call", "site.slot", "kind", "api", "module", "flags")
)


def _laid_out_alike(mine: Sequence[Value], theirs: Sequence[Value]) -> bool:
    """Whether both sides have, value by value, the same in all that values are matched by, as one script has that ran
    twice: the twin of each value is then the one of the same index.
    """
    if len(mine) != len(theirs) or not all(map(eq, map(_LAYOUT, mine), map(_LAYOUT, theirs))):
        return False
    args = [[value.args for value in values if value.args is not None] for values in (mine, theirs)]
    if args[0] != args[1] and sorted(args[0]) == sorted(args[1]):
        return False  # calls in another order
    return all(
        (one.args is None) == (other.args is None) and (one.root == other.root or one.site.phase not in _OF_UPDATE)
        for one, other in zip(mine, theirs, strict=True)
    )


_OF_UPDATE = ("param", "grad", "opt")
"""Phases in which calls are matched by the parameter that they work on."""


def _is_of_one_model(found: Alignment, words: Callable[[str], str]) -> bool:
    """Whether values inside of a model have twins; also where values have twins and a side has nothing of a model."""
    if any(pair.mine and pair.theirs and is_inside(pair.mine, words) for pair in found.pairs):
        return True
    return bool(found.twins) and not (_has_places(found.mine) and _has_places(found.theirs))


def _has_places(step: StepValues) -> bool:
    return any(value.kind in ("module", "param") or value.module for value in step.values)


def _matched(mine: Side, theirs: Side) -> tuple[list[Pair], Twins]:
    twins = matched(mine, theirs)
    reasons = Reasons(mine, theirs, "RUN", "REF"), Reasons(theirs, mine, "REF", "RUN")

    def fit(value: Value, twin: Value) -> bool:
        return not mine.shapes(value).isdisjoint(theirs.shapes(twin))

    pairs: list[Pair] = []
    for call, twin in twins:
        if call is not None and twin is not None:
            pairs += [_pair(*each, *reasons, called=True) for each in matched_values(call, twin, fit)]
            continue
        pairs += [_pair(value, None, *reasons, called=False) for value in (call.values if call is not None else ())]
        pairs += [_pair(None, value, *reasons, called=False) for value in (twin.values if twin is not None else ())]
    return _in_order(pairs, _indices_of_pair), _in_order(twins, _indices_of_call)


def _pair(value: Value | None, other: Value | None, mine: Reasons, theirs: Reasons, *, called: bool) -> Pair:
    if value is not None:
        return Pair(value, other, mine.of(value, called=called) if other is None else "")
    return Pair(value, other, theirs.of(other, called=called) if other is not None else "")


def _in_order(items: Sequence[Item], index: Callable[[Item], tuple[int | None, int | None]]) -> list[Item]:
    """Items by ``index`` on the side of the run; those that only the other side has follow what they follow there."""
    indices = [index(item) for item in items]
    place = {other: own for own, other in indices if own is not None and other is not None}
    after = _followed(place, [other for _, other in indices if other is not None])

    def at(item: Item) -> tuple[int, int, int]:
        own, other = index(item)
        if own is not None:
            return own, 0, 0
        return (after[other], 1, other) if other is not None else (-1, 1, 0)

    return sorted(items, key=at)


def _indices_of_pair(pair: Pair) -> tuple[int | None, int | None]:
    return pair.mine and pair.mine.index, pair.theirs and pair.theirs.index


def _indices_of_call(pair: tuple[Call | None, Call | None]) -> tuple[int | None, int | None]:
    call, twin = pair
    return call and call.first.index, twin and twin.first.index


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
