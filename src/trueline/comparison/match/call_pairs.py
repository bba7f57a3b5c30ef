"""Which call of one run is which of the other: by name and order within a module, else by function, shapes, inputs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trueline.comparison.match.needleman_wunsch import aligned
from trueline.comparison.op_names import op_class_of
from trueline.judge.recorded.step_values import Call, StepValues, Value
from trueline.judge.recorded.stored_tensors import Shape

Twins = list[tuple[Call | None, Call | None]]
Shapes = Callable[[Value], frozenset[Shape]]
"""Every shape that a value may have: several where it is not merged yet, one part standing for all."""


def own_shape(value: Value) -> frozenset[Shape]:
    """The only shape of a value that is whole."""
    return frozenset((value.shape,))


_IN_PLACE = {
    "iadd": "add",
    "isub": "sub",
    "imul": "mul",
    "itruediv": "div",
    "truediv": "div",
    "radd": "add",
    "rmul": "mul",
}
"""Operators that compute what a function of another name does."""

_OF_STEP = ("param", "grad", "opt", "comm")
"""Phases that come once a step: the micro-batch that is noted with them is the last one."""


class Side:
    """The calls of one step as they are matched. ``plain`` gives the name of a call, parameter or module that both
    runs are to share, ``shapes`` the shapes that a value may have.
    """

    def __init__(self, step: StepValues, plain: Callable[[str], str], shapes: Shapes = own_shape) -> None:
        self.values = step.values
        self.shapes = shapes
        self.compiled = {plain(name) for name in step.compiled}
        self.compiled |= {plain(value.site.name) for value in step.values if "compiled" in value.flags}
        self.calls = step.calls()
        self.plain = plain
        forward = any(call.phase == "fwd" for call in self.calls)
        self.gradients = [call for call in self.calls if _is_gradient(call, forward)]
        gradients = set(map(id, self.gradients))
        self._trained = {_key(call) for call in self.gradients}
        self.executed = [call for call in self.calls if id(call) not in gradients]
        self._updated = updated(step.values, plain)

    def kind_of(self, call: Call) -> tuple[object, ...]:
        """What a call has in common with those that it may be matched with: place and kind, under the shared names."""
        micro = 0 if call.phase in _OF_STEP else call.micro
        first = call.first
        place = self.plain(first.module if first.kind == "op" else call.name)
        return micro, call.phase, first.kind, place, "recomputed" in first.flags, self._updated.get(first.index, "")

    def traits(self, call: Call) -> CallTraits:
        """See ``CallTraits``."""
        taken = [value for value in call.values if not value.returned]
        return CallTraits(
            op=op_of(call),
            taken=tuple(map(self.shapes, taken)),
            returned=tuple(self.shapes(value) for value in call.values if value.returned),
            args=_arguments(call),
            makers=tuple(self._maker(value) for value in taken),
            trained=_key(call) in self._trained,
        )

    def _maker(self, value: Value) -> str:
        first = self.values[value.root]
        return first.site.name.rsplit(".", 1)[-1] if first.returned else ""


@dataclass(frozen=True, slots=True)
class CallTraits:
    """What distinguishes calls of one module: op, shapes, arguments, names of the calls that made the inputs, and
    whether gradients came back through it.
    """

    op: str
    taken: tuple[frozenset[Shape], ...]
    returned: tuple[frozenset[Shape], ...]
    args: str | None
    makers: tuple[str, ...]
    trained: bool

    def similarity(self, other: CallTraits) -> int:
        """0 for different ops; else more, the more of the traits are equal. Calls that only move numbers are identified
        by what they move: two that take other shapes from other calls do not match. Neither do two that work number by
        number where what they return has another shape, too.
        """
        if self.op != other.op:
            return 0
        same_taken, same_returned = _fit(self.taken, other.taken), _fit(self.returned, other.returned)
        if not same_taken and self.makers != other.makers:
            op_class = op_class_of(self.op)
            if op_class == "exact" or (op_class in ("rounded", "activation") and not same_returned):
                return 0
        alike = 4 + 3 * same_taken + 2 * same_returned + 2 * (self.makers == other.makers) + (self.args == other.args)
        return alike + 2 * (self.trained == other.trained)


def _fit(one: Sequence[frozenset[Shape]], other: Sequence[frozenset[Shape]]) -> bool:
    """Whether the values of both sides may have the same shapes."""
    return len(one) == len(other) and not any(a.isdisjoint(b) for a, b in zip(one, other, strict=True))


def updated(values: Sequence[Value], plain: Callable[[str], str]) -> dict[int, str]:
    """The parameter that a call of the optimizer works on, by the index of the call's first value, as ``plain`` names
    it: the one that the call takes, or whose gradient or state (of its shape) it takes. Single numbers, such as a count
    of steps, belong to the parameter of the next call. Calls on several or on unknown parameters have none.
    """
    names = {value.root: plain(value.site.name) for value in values if value.site.phase in ("param", "grad")}
    found: dict[int, str] = {}
    waiting: list[int] = []
    calls = [call for call in _calls_of(values) if call[0].kind == "op"]
    for call in calls if names else ():
        known = {names[value.root] for value in call if value.root in names}
        if len(known) == 1:
            (name,) = known
            shapes = {value.shape for value in call if value.root in names}
            names |= {value.root: name for value in call if value.root not in names and value.shape in shapes}
            found |= dict.fromkeys([*waiting, call[0].index], name)
            waiting = []
        elif known or any(math.prod(value.shape) > 1 for value in call):
            waiting = []
        else:
            waiting.append(call[0].index)
    return found


def _calls_of(values: Sequence[Value]) -> list[list[Value]]:
    """The values of each call of the optimizer."""
    calls: dict[tuple[object, ...], list[Value]] = defaultdict(list)
    for value in values:
        if value.site.phase == "opt":
            calls[value.site.micro, value.site.name, value.site.call].append(value)
    return list(calls.values())


def op_of(call: Call) -> str:
    """What a call computes, however it was written: ``add`` for ``+``, ``+=``, ``add_`` and ``torch.add``. Modules are
    all ``module``, and parameters ``param``: their place says what they are, while FSDP or a subclass may change a
    class, and a map the last part of a name.
    """
    if call.first.kind in ("module", "param"):
        return call.first.kind
    op = call.op.strip("_")
    return _IN_PLACE.get(op, op)


def matched(mine: Side, theirs: Side) -> Twins:
    """Every call once, with its twin or None, in no particular order."""
    twins = _matched_executed(mine, theirs)
    forward = {id(one): other for one, other in twins if one is not None and other is not None}
    return twins + _matched_gradients(mine, theirs, forward)


def _matched_executed(mine: Side, theirs: Side) -> Twins:
    groups: dict[tuple[object, ...], tuple[list[Call], list[Call]]] = defaultdict(lambda: ([], []))
    for which, side in enumerate((mine, theirs)):
        for call in side.executed:
            groups[side.kind_of(call)][which].append(call)
    return [pair for ours, others in groups.values() for pair in _in_group(mine, theirs, ours, others)]


def _in_group(mine: Side, theirs: Side, ours: list[Call], others: list[Call]) -> Twins:
    if not ours or not others:
        return [*((call, None) for call in ours), *((None, call) for call in others)]
    if [op_of(call) for call in ours] == [op_of(call) for call in others]:
        return list(zip(ours, by_arguments(ours, others), strict=True))
    found = aligned(
        [mine.traits(call) for call in ours],
        [theirs.traits(call) for call in others],
        lambda one, other: one.similarity(other),
    )
    return [(None if i is None else ours[i], None if j is None else others[j]) for i, j in found]


def by_arguments(ours: Sequence[Call], others: Sequence[Call]) -> list[Call]:
    """``others``, which call the same functions as ``ours`` in turn, in the order of their arguments: two runs may do
    the same for each of several numbers, as for the experts of a layer, in another order. What takes the results of
    such calls follows them. Functions whose arguments are not the same in both, or that several calls share, stay.
    """
    found, places = list(others), defaultdict[str, list[int]](list)
    for place, call in enumerate(ours):
        places[op_of(call)].append(place)
    moved: dict[int, int] = {}
    """By root of what a call of ``ours`` returned that was moved, the root of the twin."""
    for same in places.values():
        keys = [[_arguments(calls[place]) for place in same] for calls in (ours, others)]
        if keys[0] == keys[1] or None in keys[0] or len(set(keys[0])) < len(same) or set(keys[0]) != set(keys[1]):
            continue
        place_of = dict(zip(keys[1], same, strict=True))
        for key, place in zip(keys[0], same, strict=True):
            found[place] = others[place_of[key]]
            moved |= _returned_by(ours[place], found[place])
    if moved:
        _follow(ours, found, places, moved)
    return found


def _follow(
    ours: Sequence[Call], found: list[Call], places: Mapping[str, Sequence[int]], moved: dict[int, int]
) -> None:
    """Give calls that take what ``moved`` calls returned the twins that take the twins of that, by exchange."""
    for place, call in enumerate(ours):
        if any(value.root in moved for value in call.outs):
            continue
        taken = {moved[value.root] for value in call.ins if value.root in moved}
        same = [each for each in places[op_of(call)] if taken <= {value.root for value in found[each].ins}]
        if not taken or not same:
            continue
        other = place if place in same else same[0]
        found[place], found[other] = found[other], found[place]
        moved |= _returned_by(call, found[place])


def _returned_by(call: Call, twin: Call) -> dict[int, int]:
    return {one.root: other.root for one, other in zip(call.outs, twin.outs, strict=False)}


def _arguments(call: Call) -> str | None:
    return next((value.args for value in call.values if value.args is not None), None)


def _matched_gradients(mine: Side, theirs: Side, forward: dict[int, Call]) -> Twins:
    """Gradients belong to calls of the forward pass, and so do their twins."""
    waiting: dict[tuple[object, ...], list[Call]] = defaultdict(list)
    belongs = _originals(theirs)
    for call in theirs.gradients:
        original = belongs.get(_key(call))
        waiting[("call", id(original)) if original is not None else _by_name(theirs, call)].append(call)
    twins: Twins = []
    belongs = _originals(mine)
    for call in mine.gradients:
        original = belongs.get(_key(call))
        if original is not None:
            twin = forward.get(id(original))
            candidates = waiting.get(("call", id(twin)), []) if twin is not None else []
        else:
            candidates = waiting.get(_by_name(mine, call), [])
        twins.append((call, candidates.pop(0) if candidates else None))
    return twins + [(None, call) for calls in waiting.values() for call in calls]


def _originals(side: Side) -> dict[tuple[object, ...], Call]:
    """By micro-batch, name and number of a forward call: the call, or the one that it recomputes."""
    own: dict[tuple[int, str], list[Call]] = defaultdict(list)
    again: dict[tuple[int, str], list[Call]] = defaultdict(list)
    for call in side.executed:
        if call.phase in ("fwd", "save"):
            (again if "recomputed" in call.first.flags else own)[call.micro, call.name].append(call)
    found = {_key(call): call for calls in own.values() for call in calls}
    for key, calls in again.items():
        found |= {_key(call): original for call, original in zip(calls, own.get(key, calls), strict=False)}
    return found


def _key(call: Call) -> tuple[object, ...]:
    return call.micro, call.name, call.number


def _by_name(side: Side, call: Call) -> tuple[object, ...]:
    return call.micro, call.first.kind, side.plain(call.name), call.number


def _is_gradient(call: Call, forward: bool) -> bool:
    """Whether a call of phase bwd holds the gradients of a forward call; calls that run in backward have arguments.
    Where the forward pass was not recorded (``forward`` False), the first gradient of a call has them.
    """
    return call.phase == "bwd" and (call.first.args is None or not forward)


def matched_values(
    mine: Call, theirs: Call, fit: Callable[[Value, Value], bool]
) -> list[tuple[Value | None, Value | None]]:
    """The values of two matched calls by slot; inputs by position and by name in their order, where shapes ``fit``.
    Lists of different lengths are not matched: which is which is not known.
    """
    if [value.site.slot for value in mine.values] == [value.site.slot for value in theirs.values]:
        return list(zip(mine.values, theirs.values, strict=True))
    lists = _lengths_of_lists(mine), _lengths_of_lists(theirs)
    apart = {name for name, length in lists[0].items() if lists[1].get(name, length) != length}
    if apart:
        found = matched_values(_without(mine, apart), _without(theirs, apart), fit)
        alone = ((value, None) for value in mine.values if _list_of(value) in apart)
        return [*found, *alone, *((None, value) for value in theirs.values if _list_of(value) in apart)]
    theirs_by_slot: dict[str, list[Value]] = defaultdict(list)
    for value in theirs.values:
        theirs_by_slot[value.site.slot].append(value)
    pairs: list[tuple[Value | None, Value | None]] = []
    for value in mine.values:
        twins = theirs_by_slot.get(value.site.slot)
        pairs.append((value, twins.pop(0) if twins else None))
    left = [value for values in theirs_by_slot.values() for value in values]
    return _by_order(pairs, sorted(left, key=lambda value: value.index), fit)


def _list_of(value: Value) -> str:
    """``in0`` of ``in0.3``; '' of a slot that is not in a list."""
    name, _, place = value.site.slot.rpartition(".")
    return name if place.isdigit() else ""


def _lengths_of_lists(call: Call) -> Counter[str]:
    return Counter(filter(None, map(_list_of, call.values)))


def _without(call: Call, lists: set[str]) -> Call:
    return replace(call, values=[value for value in call.values if _list_of(value) not in lists])


def _by_order(
    pairs: list[tuple[Value | None, Value | None]], left: Sequence[Value], fit: Callable[[Value, Value], bool]
) -> list[tuple[Value | None, Value | None]]:
    rest = list(left)
    for at, (value, twin) in enumerate(pairs):
        if value is None or twin is not None:
            continue
        found = next((x for x in rest if x.returned == value.returned and fit(value, x)), None)
        if found is not None:
            rest.remove(found)
            pairs[at] = (value, found)
    return pairs + [(None, value) for value in rest]
