"""Pairs of calls of two runs: by name and order within a module, else by function, shapes and inputs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trueline.comparison.match.needleman_wunsch import align_sequences
from trueline.comparison.op_names import op_class_of
from trueline.judge.recorded.step_values import Call, StepValues, Value
from trueline.judge.recorded.stored_tensors import Shape

Twins = list[tuple[Call | None, Call | None]]
Shapes = Callable[[Value], frozenset[Shape]]
"""Possible shapes of a value: several where it is not merged yet and one part stands for all."""


def own_shape(value: Value) -> frozenset[Shape]:
    """Shapes of a value that is whole: its own alone."""
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
"""Operators by the name of the function that computes the same."""

_STEP_PHASES = ("param", "grad", "opt", "comm")
"""Phases that occur once a step; the micro-batch noted with them is the last one."""


class Side:
    """Calls of one step, prepared for matching.

    ``plain`` gives the shared name of a call, parameter or module, ``shapes`` the possible shapes of a value.
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
        self._trained = {_call_key(call) for call in self.gradients}
        self.executed = [call for call in self.calls if id(call) not in gradients]
        self._updated = updated_params(step.values, plain)

    def match_key(self, call: Call) -> tuple[object, ...]:
        """Key of a call that its twin must share: phase, kind and module under the shared names, and parameter."""
        micro = 0 if call.phase in _STEP_PHASES else call.micro
        first = call.first
        owner = self.plain(first.module if first.kind == "op" else call.name)
        return micro, call.phase, first.kind, owner, "recomputed" in first.flags, self._updated.get(first.index, "")

    def traits(self, call: Call) -> CallTraits:
        """Return the ``CallTraits`` of a call."""
        inputs = [value for value in call.values if not value.returned]
        return CallTraits(
            op=op_of(call),
            inputs=tuple(map(self.shapes, inputs)),
            outputs=tuple(self.shapes(value) for value in call.values if value.returned),
            args=_arguments(call),
            makers=tuple(self._maker(value) for value in inputs),
            trained=_call_key(call) in self._trained,
        )

    def _maker(self, value: Value) -> str:
        first = self.values[value.root]
        return first.site.name.rsplit(".", 1)[-1] if first.returned else ""


@dataclass(frozen=True, slots=True)
class CallTraits:
    """Traits that distinguish calls of one module.

    These are op, shapes of inputs and outputs, arguments, names of the calls that made the inputs (``makers``), and
    whether gradients came back through the call (``trained``).
    """

    op: str
    inputs: tuple[frozenset[Shape], ...]
    outputs: tuple[frozenset[Shape], ...]
    args: str | None
    makers: tuple[str, ...]
    trained: bool

    def similarity(self, twin: CallTraits) -> int:
        """Score of a pair of calls: 0 for different ops, else the higher, the more traits are equal.

        Calls that only move numbers are identified by their inputs: two with other shapes from other calls do not
        match. Neither do two elementwise calls whose outputs have other shapes, too.
        """
        if self.op != twin.op:
            return 0
        same_inputs = _may_share_shapes(self.inputs, twin.inputs)
        same_outputs = _may_share_shapes(self.outputs, twin.outputs)
        if not same_inputs and self.makers != twin.makers:
            op_class = op_class_of(self.op)
            if op_class == "exact" or (op_class in ("rounded", "activation") and not same_outputs):
                return 0
        # Shapes weigh most: makers and arguments change with the way in which code is written.
        score = 4 + 3 * same_inputs + 2 * same_outputs + 2 * (self.makers == twin.makers) + (self.args == twin.args)
        return score + 2 * (self.trained == twin.trained)


def _may_share_shapes(shapes: Sequence[frozenset[Shape]], twin_shapes: Sequence[frozenset[Shape]]) -> bool:
    if len(shapes) != len(twin_shapes):
        return False
    return not any(shape.isdisjoint(twin) for shape, twin in zip(shapes, twin_shapes, strict=True))


def updated_params(values: Sequence[Value], plain: Callable[[str], str]) -> dict[int, str]:
    """Parameter, named by ``plain``, of each call of the optimizer, by the index of the call's first value.

    A call belongs to the parameter that it takes, or whose gradient or state (of its shape) it takes. Single numbers,
    such as a count of steps, belong to the parameter of the next call. Calls on several or on unknown parameters are
    left out.
    """
    names = {value.root: plain(value.site.name) for value in values if value.site.phase in ("param", "grad")}
    param_by_index: dict[int, str] = {}
    pending: list[int] = []
    calls = [call for call in _calls_of(values) if call[0].kind == "op"]
    for call in calls if names else ():
        params = {names[value.root] for value in call if value.root in names}
        if len(params) == 1:
            (name,) = params
            shapes = {value.shape for value in call if value.root in names}
            names |= {value.root: name for value in call if value.root not in names and value.shape in shapes}
            param_by_index |= dict.fromkeys([*pending, call[0].index], name)
            pending = []
        elif params or any(math.prod(value.shape) > 1 for value in call):
            pending = []
        else:
            pending.append(call[0].index)
    return param_by_index


def _calls_of(values: Sequence[Value]) -> list[list[Value]]:
    calls: dict[tuple[object, ...], list[Value]] = defaultdict(list)
    for value in values:
        if value.site.phase == "opt":
            calls[value.site.micro, value.site.name, value.site.call].append(value)
    return list(calls.values())


def op_of(call: Call) -> str:
    """Name of a call's function, however it was written: ``add`` for ``+``, ``+=``, ``add_`` and ``torch.add``.

    Modules are all ``module`` and parameters ``param``: their name identifies them, while FSDP or a subclass may change
    a class, and a map the last part of a name.
    """
    if call.first.kind in ("module", "param"):
        return call.first.kind
    op = call.op.strip("_")
    return _IN_PLACE.get(op, op)


def match_calls(run: Side, ref: Side) -> Twins:
    """Pair every call with its twin or None, in no particular order."""
    # Executed calls first: gradients follow the twins of their forward calls.
    twins = _match_executed(run, ref)
    twin_by_id = {id(call): twin for call, twin in twins if call is not None and twin is not None}
    return twins + _match_gradients(run, ref, twin_by_id)


def _match_executed(run: Side, ref: Side) -> Twins:
    groups: dict[tuple[object, ...], tuple[list[Call], list[Call]]] = defaultdict(lambda: ([], []))
    for index, side in enumerate((run, ref)):
        for call in side.executed:
            groups[side.match_key(call)][index].append(call)
    return [pair for run_calls, ref_calls in groups.values() for pair in _match_group(run, ref, run_calls, ref_calls)]


def _match_group(run: Side, ref: Side, run_calls: list[Call], ref_calls: list[Call]) -> Twins:
    if not run_calls or not ref_calls:
        return [*((call, None) for call in run_calls), *((None, call) for call in ref_calls)]
    if [op_of(call) for call in run_calls] == [op_of(call) for call in ref_calls]:
        return list(zip(run_calls, reorder_by_arguments(run_calls, ref_calls), strict=True))
    indices = align_sequences(
        [run.traits(call) for call in run_calls],
        [ref.traits(call) for call in ref_calls],
        CallTraits.similarity,
    )
    return [(None if i is None else run_calls[i], None if j is None else ref_calls[j]) for i, j in indices]


def reorder_by_arguments(run_calls: Sequence[Call], ref_calls: Sequence[Call]) -> list[Call]:
    """Reorder ``ref_calls``, calls of the same functions as ``run_calls``, so that arguments agree.

    Two runs may loop in another order over several numbers, such as the experts of a layer. Calls that take the results
    of such calls follow them. Functions stay in place if their arguments differ between the runs, or repeat.
    """
    reordered, positions_by_op = list(ref_calls), defaultdict[str, list[int]](list)
    for position, call in enumerate(run_calls):
        positions_by_op[op_of(call)].append(position)
    twin_roots: dict[int, int] = {}
    # Root in the reference by root in the run, of values that calls with a new twin returned.
    for positions in positions_by_op.values():
        keys = [[_arguments(calls[position]) for position in positions] for calls in (run_calls, ref_calls)]
        if keys[0] == keys[1] or None in keys[0] or len(set(keys[0])) < len(positions) or set(keys[0]) != set(keys[1]):
            continue
        ref_position = dict(zip(keys[1], positions, strict=True))
        for key, position in zip(keys[0], positions, strict=True):
            reordered[position] = ref_calls[ref_position[key]]
            twin_roots |= _output_roots(run_calls[position], reordered[position])
    if twin_roots:
        _pair_followers(run_calls, reordered, positions_by_op, twin_roots)
    return reordered


def _pair_followers(
    run_calls: Sequence[Call],
    reordered: list[Call],
    positions_by_op: Mapping[str, Sequence[int]],
    twin_roots: dict[int, int],
) -> None:
    """Exchange twins so that a call that takes a root in ``twin_roots`` is paired with one that takes its twin."""
    for position, call in enumerate(run_calls):
        if any(value.root in twin_roots for value in call.outs):
            continue
        taken_roots = {twin_roots[value.root] for value in call.ins if value.root in twin_roots}
        candidates = [
            candidate
            for candidate in positions_by_op[op_of(call)]
            if taken_roots <= {value.root for value in reordered[candidate].ins}
        ]
        if not taken_roots or not candidates:
            continue
        partner = position if position in candidates else candidates[0]
        reordered[position], reordered[partner] = reordered[partner], reordered[position]
        twin_roots |= _output_roots(call, reordered[position])


def _output_roots(call: Call, twin: Call) -> dict[int, int]:
    return {value.root: twin_value.root for value, twin_value in zip(call.outs, twin.outs, strict=False)}


def _arguments(call: Call) -> str | None:
    return next((value.args for value in call.values if value.args is not None), None)


def _match_gradients(run: Side, ref: Side, twin_by_id: dict[int, Call]) -> Twins:
    """Pair gradients by the twins of the forward calls that they belong to."""
    unmatched: dict[tuple[object, ...], list[Call]] = defaultdict(list)
    originals = _original_calls(ref)
    for call in ref.gradients:
        original = originals.get(_call_key(call))
        unmatched[("call", id(original)) if original is not None else _name_key(ref, call)].append(call)
    twins: Twins = []
    originals = _original_calls(run)
    for call in run.gradients:
        original = originals.get(_call_key(call))
        if original is not None:
            twin = twin_by_id.get(id(original))
            candidates = unmatched.get(("call", id(twin)), []) if twin is not None else []
        else:
            candidates = unmatched.get(_name_key(run, call), [])
        twins.append((call, candidates.pop(0) if candidates else None))
    return twins + [(None, call) for calls in unmatched.values() for call in calls]


def _original_calls(side: Side) -> dict[tuple[object, ...], Call]:
    """Forward call, or the call that it recomputes, by micro-batch, name and number."""
    first_calls: dict[tuple[int, str], list[Call]] = defaultdict(list)
    recomputed: dict[tuple[int, str], list[Call]] = defaultdict(list)
    for call in side.executed:
        if call.phase in ("fwd", "save"):
            (recomputed if "recomputed" in call.first.flags else first_calls)[call.micro, call.name].append(call)
    originals = {_call_key(call): call for calls in first_calls.values() for call in calls}
    for key, calls in recomputed.items():
        originals |= {
            _call_key(call): original for call, original in zip(calls, first_calls.get(key, calls), strict=False)
        }
    return originals


def _call_key(call: Call) -> tuple[object, ...]:
    return call.micro, call.name, call.number


def _name_key(side: Side, call: Call) -> tuple[object, ...]:
    return call.micro, call.first.kind, side.plain(call.name), call.number


def _is_gradient(call: Call, forward: bool) -> bool:
    """Tell whether a call of phase bwd holds the gradients of a forward call.

    Other calls that run in backward have arguments. Where the forward pass was not recorded (``forward`` False), the
    first gradient of a call has arguments.
    """
    return call.phase == "bwd" and (call.first.args is None or not forward)


def match_values(
    run_call: Call, ref_call: Call, fit: Callable[[Value, Value], bool]
) -> list[tuple[Value | None, Value | None]]:
    """Pair the values of two matched calls by slot, then inputs by position and by name where shapes ``fit``.

    Lists of different lengths are not matched, since their items cannot be identified.
    """
    if [value.site.slot for value in run_call.values] == [value.site.slot for value in ref_call.values]:
        return list(zip(run_call.values, ref_call.values, strict=True))
    lists = _lengths_of_lists(run_call), _lengths_of_lists(ref_call)
    unequal_lists = {name for name, length in lists[0].items() if lists[1].get(name, length) != length}
    if unequal_lists:
        run_rest, ref_rest = (_without_lists(call, unequal_lists) for call in (run_call, ref_call))
        run_only = ((value, None) for value in run_call.values if _list_name(value) in unequal_lists)
        ref_only = ((None, value) for value in ref_call.values if _list_name(value) in unequal_lists)
        return [*match_values(run_rest, ref_rest, fit), *run_only, *ref_only]
    ref_by_slot: dict[str, list[Value]] = defaultdict(list)
    for value in ref_call.values:
        ref_by_slot[value.site.slot].append(value)
    pairs: list[tuple[Value | None, Value | None]] = []
    for value in run_call.values:
        twins = ref_by_slot.get(value.site.slot)
        pairs.append((value, twins.pop(0) if twins else None))
    unmatched = [value for values in ref_by_slot.values() for value in values]
    return _match_by_order(pairs, sorted(unmatched, key=lambda value: value.index), fit)


def _list_name(value: Value) -> str:
    """Return ``in0`` for ``in0.3``, '' for a slot that is not in a list."""
    name, _, index = value.site.slot.rpartition(".")
    return name if index.isdigit() else ""


def _lengths_of_lists(call: Call) -> Counter[str]:
    return Counter(filter(None, map(_list_name, call.values)))


def _without_lists(call: Call, lists: set[str]) -> Call:
    return replace(call, values=[value for value in call.values if _list_name(value) not in lists])


def _match_by_order(
    pairs: list[tuple[Value | None, Value | None]], unmatched: Sequence[Value], fit: Callable[[Value, Value], bool]
) -> list[tuple[Value | None, Value | None]]:
    rest = list(unmatched)
    for index, (value, twin) in enumerate(pairs):
        if value is None or twin is not None:
            continue
        candidate = next((x for x in rest if x.returned == value.returned and fit(value, x)), None)
        if candidate is not None:
            rest.remove(candidate)
            pairs[index] = (value, candidate)
    return pairs + [(None, value) for value in rest]
