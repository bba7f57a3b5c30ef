"""Relative difference that rounding explains for each value of a step, value by value in the order of execution.

When a value is judged, the differences of its call's inputs are known: measured ones, or expected ones where nothing
was measured. The result is expected to differ by these, passed on as ``propagation`` says, and by the call's own
rounding on both sides (``ops``). A value that no recorded call computed is expected to be equal.

Gradients run through the same calls in the other direction: the gradient that a call's backward returns for an input
depends on the gradient that it received and on the inputs of the forward call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from trueline.comparison.expect.ops import op_rounding_rel
from trueline.comparison.expect.propagation import (
    Operand,
    backward_rel,
    condition_of,
    forward_rel,
    mask_difference_rel,
    reduction_length,
    size_of,
)
from trueline.comparison.expect.rounding import UNIT_ROUNDOFF, coarser, rounding_rel
from trueline.comparison.expect.unrecorded import Unrecorded, rounding_of_code
from trueline.comparison.op_names import LINEAR, function_of, op_class_of
from trueline.judge.recorded.step_values import CallKey, StepValues, Value, key_of
from trueline.schema.fact import fact

Origin = Literal["call", "given", "param", "gradient", "wiring", "unrecorded"]
"""Where a value comes from: a recorded call, no recorded call, the parameters, the backward of a call that is not
recorded; or (``wiring``) it was seen before with another twin: the two runs connect their calls differently. Where only
calls of modules were recorded, the code between them (``unrecorded``)."""

UNRELATED = math.sqrt(2)
"""Relative difference of two unrelated values of equal norm."""


@fact()
class Expectation:
    """The difference ``rel`` of a value that rounding explains, and the values that it was computed from.

    ``own`` is the part that is due to the rounding of ``call``, which computed the value, ``sources`` are the roots of
    the inputs, and ``tainted`` says that one of these differs by more than rounding explains. ``decided``: before it
    came a decision (an index, a comparison) that the two runs take differently, or random numbers that they do not
    share. ``explained`` is the difference to expect if those of tainted inputs had no effect on it; None where that is
    not known. ``within`` is the innermost module whose unrecorded code computed the value, '' outside of the model.
    ``carried`` is what to expect if the differences of inputs that the two runs make in different ways reach it; 0.0
    where it has none of them.
    """

    rel: float
    own: float
    origin: Origin
    tainted: bool = False
    sources: tuple[int, ...] = ()
    call: CallKey | None = None
    decided: bool = False
    explained: float | None = None
    within: str | None = None
    carried: float = 0.0


@dataclass(slots=True)
class _SeenValue:
    """State of a value at the time when a call takes it."""

    operand: Operand
    dtype: str
    tainted: bool = False
    decided: bool = False
    explained: float = 0.0
    """Relative difference that rounding explains, at most that of ``operand``."""
    carried: float = 0.0
    """Measured relative difference of a value that the two runs make in different ways; else 0.0."""


@dataclass(slots=True)
class _SeenCall:
    """Inputs of a call so far; those of a backward are the gradients that it received."""

    api: str
    inputs: list[int] = field(default_factory=list[int])
    slots: list[str] = field(default_factory=list[str])
    worst_inside: float = 0.0


class Expected:
    """Expectations of the values of ``side``: query values in order, and ``learn`` each measured difference."""

    def __init__(self, side: StepValues, *, of_reference: bool = False, autocast: str = "") -> None:
        self._of_reference = of_reference
        self._autocast = autocast
        self._compiled = side.compiled
        self.largest_gradient = max(
            (
                value.stats.norm
                for value in side.values
                if value.kind == "param" and _is_backward(value) and value.stats
            ),
            default=0.0,
        )
        self._values: dict[int, _SeenValue] = {}
        self._calls: dict[CallKey, _SeenCall] = {}
        self._gradients: dict[int, list[int]] = {}
        self._uses: dict[int, list[tuple[int, str, str, int, str]]] = {}
        """Forward calls that took a value, without those that returned the same tensor, which has the same gradient."""
        self._arrived: set[tuple[int, str, int, str]] = set()
        self._param_roots = {value.root: value.site.name for value in side.values if value.site.phase == "param"}
        self._by_param = {name: root for root, name in self._param_roots.items()}
        self._grad_roots: dict[str, int] = {}
        self._norm_rel: float | None = None
        self._unrecorded = Unrecorded(side)
        self._any_tainted = False
        self._worst = 0.0
        self._worst_backward = 0.0
        self._leaves = {name.rsplit(".", 1)[0] for name in self._by_param}
        self._executed_in_backward: CallKey | None = None
        self._forward_roots: dict[tuple[int, str, int, str], int] = {}
        self._latest: dict[tuple[int, str, str], int] = {}
        self._size_cache: tuple[Value, tuple[float | None, float, float]] | None = None
        self._open_modules_cache: tuple[tuple[int, str, str], list[_SeenCall]] | None = None
        """Last argument and result of ``_open_modules``; None once another module was called."""

    def of(self, value: Value, twin: Value | None) -> Expectation:
        """Expectation for a value that is seen for the first time (``root`` is its own index)."""
        expectation = self._by_origin(value, twin)
        rel = math.hypot(expectation.rel, mask_difference_rel(value, twin))
        if rel > UNRELATED:
            rel = min(rel, self._unrelated_rel(value, twin))
        return expectation if rel == expectation.rel else replace(expectation, rel=rel)

    def _by_origin(self, value: Value, twin: Value | None) -> Expectation:
        dtype = coarser(value.dtype, twin.dtype) if twin is not None else value.dtype
        if value.kind == "param":
            return self._of_param(value, twin, self._operand(value, twin, 0.0), dtype)
        if self._is_gradient(value):
            return self._of_gradient(value, self._operand(value, twin, 0.0), dtype)
        call = self._calls.get(key_of(value)) if value.returned else None
        if call is None:
            return self._of_given(value, twin)
        return self._of_call(value, twin, call, self._operand(value, twin, 0.0), dtype)

    def param_of(self, root: int) -> str | None:
        """Name of the parameter with this root; None for other values."""
        return self._param_roots.get(root)

    @property
    def of_modules(self) -> bool:
        """True where only calls of modules were recorded."""
        return self._unrecorded.applies

    def knows(self, root: int) -> bool:
        """Tell whether a value was seen before."""
        return root in self._values

    def again(self, value: Value) -> Expectation:
        """Expectation for a value that was seen before, with another twin than then."""
        seen_value = self._values[value.root]
        origin: Origin = "param" if value.root in self._param_roots else "wiring"
        return Expectation(seen_value.operand.rel, 0.0, origin, seen_value.tainted)

    def learn(
        self,
        value: Value,
        twin: Value | None,
        rel: float,
        *,
        dtype: str,
        tainted: bool,
        decided: bool = False,
        explained: float | None = None,
        carried: float = 0.0,
    ) -> None:
        """Note that a value that was seen for the first time differs by ``rel``."""
        decided |= rel > 0 and not _is_float(value.dtype)
        explained = rel if explained is None else min(explained, rel)
        self._values[value.root] = _SeenValue(
            self._operand(value, twin, rel), dtype, tainted, decided, explained, carried
        )
        self._any_tainted |= tainted
        if not tainted and value.kind != "param":
            self._worst = max(self._worst, rel)
            if value.site.phase == "bwd":
                self._worst_backward = max(self._worst_backward, rel)

    def _operand(self, value: Value, twin: Value | None, rel: float) -> Operand:
        reference = self._norm_side(value, twin)
        if self._size_cache is None or self._size_cache[0] is not reference:
            self._size_cache = reference, size_of(reference)  # asked for twice, before and after it is measured
        rms, spread, excess = self._size_cache[1]
        return Operand(rel, rms, value.shape, spread, value.site.slot, excess)

    def _unrelated_rel(self, value: Value, twin: Value | None) -> float:
        """Relative difference of two unrelated values of these sizes: the largest that is ever expected."""
        reference = self._norm_side(value, twin)
        other_side = twin if reference is value else value
        if other_side is None or other_side.stats is None or reference.stats is None:
            return UNRELATED
        rms, reference_rms = other_side.stats.rms, reference.stats.rms
        return max(UNRELATED, math.hypot(1, rms / reference_rms) if rms and reference_rms else 0.0)

    def _norm_side(self, value: Value, twin: Value | None) -> Value:
        """Value that differences are relative to: noise may be far larger on one side."""
        measured_twin = None if self._of_reference or twin is None or twin.stats is None else twin
        return measured_twin or value

    def seen(self, value: Value) -> None:
        """Note where a value, new or not, was taken or returned; after ``learn``, and for every value of the step."""
        key, root, slot, returned = key_of(value), value.root, value.site.slot, value.returned
        micro, phase, name, number = key
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _SeenCall(value.api)
            if value.kind == "module":
                self._latest[micro, phase, name] = number
                self._open_modules_cache = None
        if phase == "fwd":
            self._forward_roots[micro, name, number, slot] = root
            uses = self._uses.setdefault(root, [])
            if value.kind == "op" and not returned:
                uses.append((*key, slot))
            elif uses and uses[-1][:4] == key:
                uses.pop()
        if phase == "bwd" and self._is_gradient(value):
            self._seen_gradient(value, call)
        elif not returned:
            call.inputs.append(root)
            call.slots.append(slot)
        seen_value = self._values[root]
        rel = seen_value.operand.rel
        if self._unrecorded.applies:
            self._unrecorded.note(value, seen_value.explained if seen_value.tainted else rel)
        if rel > 0:
            for open_call in self._open_modules(value):
                if rel > open_call.worst_inside:
                    open_call.worst_inside = rel

    def _seen_gradient(self, value: Value, call: _SeenCall) -> None:
        if value.returned:
            call.inputs.append(value.root)
            call.slots.append(value.site.slot)
        elif (root := self._forward_root(value)) is not None:
            self._gradients.setdefault(root, []).append(value.root)
            self._arrived.add((value.site.micro, value.site.name, value.site.call, value.site.slot))
        if value.kind == "param":
            self._grad_roots[value.site.name] = value.root
            self._norm_rel = None

    def is_taken(self, value: Value) -> bool:
        """Tell whether a call took the value: as an argument, or in backward as the gradient of its result."""
        return value.returned if self._is_gradient(value) else not value.returned

    def taken_by(self, key: CallKey) -> tuple[int, ...]:
        """Roots of the inputs of a call so far."""
        call = self._calls.get(key)
        return tuple(call.inputs) if call is not None else ()

    def decides(self, key: CallKey | None) -> bool:
        """Tell whether a call passes gradients by a decision on numbers that differ by rounding.

        Decisions are the sign of a number, or the largest of several.
        """
        call = None if key is None else self._calls.get((key[0], "fwd", key[2], key[3]))
        if call is None or function_of(call.api) not in _DECIDING:
            return False
        return any(seen_value.operand.rel > 0 for seen_value in self._seen_values(call.inputs))

    # -- by origin ---------------------------------------------------------------------------------------------------

    def _of_param(self, value: Value, twin: Value | None, result: Operand, dtype: str) -> Expectation:
        name, phase = value.site.name, value.site.phase
        if phase == "grad" and name in self._grad_roots:
            source = self._grad_roots[name]
            own_rel = _both_sides(rounding_rel(_unit(dtype)) * math.sqrt(max(len(value.ranks), 2)))
            rel = math.hypot(self._values[source].operand.rel, self._scale_rel())
            return self._make(rel, own_rel, "call", (source,), key_of(value))
        if phase == "bwd":
            return self._of_gradient(value, result, dtype)
        if phase == "grad":
            return self._of_unseen_call(result, dtype, key_of(value))
        return Expectation(_cast_rel(value, twin), 0.0, "param")

    def _scale_rel(self) -> float:
        """Largest relative difference of the norm of all gradients; clipping by it scales each of them so."""
        if self._norm_rel is None:
            self._norm_rel = self._rel_together(list(self._grad_roots.values()))
        return self._norm_rel

    def _rel_together(self, roots: Sequence[int]) -> float:
        """Relative difference that rounding explains of several values taken as one."""
        operands = self._operands([root for root in roots if root in self._values], explained=True)
        sizes = [(operand.rel, (operand.rms or 0.0) * math.sqrt(operand.numel)) for operand in operands]
        norm = math.hypot(*(size for _, size in sizes))
        return math.hypot(*(rel * size for rel, size in sizes)) / norm if norm else 0.0

    def _of_given(self, value: Value, twin: Value | None) -> Expectation:
        cast = _cast_rel(value, twin)
        if value.root in self._param_roots:
            return Expectation(cast, 0.0, "param")
        if self._unrecorded.applies and value.site.phase == "fwd" and value.module:
            return self._of_code(value, twin, value.site.name if value.returned else value.module)
        # Something that is not recorded may have made it from what is known.
        derived = self._worst if _is_float(value.dtype) else 0.0
        tainted = self._any_tainted and _is_float(value.dtype)
        return Expectation(math.hypot(cast, derived), 0.0, "given", tainted)

    def _of_code(self, value: Value, twin: Value | None, module: str, call: _SeenCall | None = None) -> Expectation:
        """Expectation for a value of the unrecorded code of a module: an input of a call in it, or its own result."""
        dtype = coarser(value.dtype, twin.dtype) if twin is not None else value.dtype
        params = [root for root in self._unrecorded.params_of(module) if root in self._values]
        param_rels = [self._values[root].operand.rel for root in params]
        rel = math.hypot(_cast_rel(value, twin), self._unrecorded.forward_rel(value, module, param_rels, dtype))
        expectation = Expectation(
            rel,
            0.0,
            "unrecorded",
            self._any_tainted,
            tuple(params),
            decided=rel > 0 and not _is_float(value.dtype),
            explained=rel,
            within=module,
        )
        if not value.returned:
            return expectation
        sources = (*(() if call is None else call.inputs), *params)
        return replace(expectation, origin="call", sources=sources, call=key_of(value))

    def _of_call(self, value: Value, twin: Value | None, call: _SeenCall, result: Operand, dtype: str) -> Expectation:
        if self._unrecorded.applies and self._unrecorded.is_code(value.site.name):
            return self._of_code(value, twin, value.site.name, call)
        by_inside = call.worst_inside or (value.site.name not in self._leaves and not self._unrecorded.applies)
        if value.kind == "module" and by_inside:
            rel = math.hypot(
                call.worst_inside, max((self._values[root].operand.rel for root in call.inputs), default=0.0)
            )
            own_rel = _both_sides(op_rounding_rel("unknown", dtype, dtype)) if _is_float(dtype) else 0.0
            if value.site.name in self._compiled:
                own_rel = self._rounding_within(value.site.name, dtype)
            return self._make(rel, own_rel, "call", tuple(call.inputs), key_of(value))
        inputs = _element_inputs(value, call)
        if value.kind == "module":
            params = [root for _, root in self._params_in(value.site.name)]
            if not params and self._unrecorded.applies and function_of(value.api) in ("linear", "embedding"):
                params = self._unrecorded.tied
            inputs += [root for root in params if root in self._values]
        function = function_of(value.api)
        ins = [self._values[root].operand for root in inputs]
        own_rel = self._own_rounding(function, inputs, result, dtype)
        # Numbers among the arguments are rounded to the dtype, whatever the function.
        own_rel = max(own_rel, _cast_rel(value, twin))
        rel = max(
            forward_rel(function, ins, result) if _is_float(value.dtype) else 0.0, self._decision_rel(value, inputs)
        )
        expectation = self._make(rel, own_rel, "call", tuple(inputs), key_of(value))
        seen_values = self._seen_values(inputs)
        if any(seen_value.carried for seen_value in seen_values):
            carried = [
                replace(seen_value.operand, rel=max(seen_value.operand.rel, seen_value.carried))
                for seen_value in seen_values
            ]
            expectation = replace(expectation, carried=forward_rel(function, carried, result))
        if not expectation.tainted:
            return expectation
        unaffected = forward_rel(function, self._operands(inputs, explained=True), result)
        return replace(expectation, explained=math.hypot(unaffected, own_rel))

    def _rounding_within(self, module: str, dtype: str) -> float:
        """Relative difference that a compiled ``module`` adds.

        It has the differences of its weights, left by earlier updates, and a rounding for each parameter in the
        coarsest dtype that is seen; under autocast three: of the input of a product, the parameter and the result.
        """
        names = dict(self._params_in(module)) or self._by_param
        for root in names.values():
            if root in self._values and _is_float(self._values[root].dtype):
                dtype = coarser(dtype, self._values[root].dtype)
        dtype = coarser(dtype, self._autocast) if self._autocast else dtype
        num = (len(names) or 1) * (3 if self._autocast else 1)
        own_rel = _both_sides(op_rounding_rel("unknown", dtype, dtype)) * math.sqrt(num) if _is_float(dtype) else 0.0
        operands = [self._values[root].operand for root in names.values() if root in self._values]
        return math.hypot(own_rel, *(weight.rel for weight in operands if len(weight.shape) > 1))

    def _params_in(self, module: str) -> Iterator[tuple[str, int]]:
        """Names and roots of the parameters of a module and of modules in it."""
        return ((name, root) for name, root in self._by_param.items() if name.startswith(f"{module}."))

    def _of_gradient(self, value: Value, result: Operand, dtype: str) -> Expectation:
        key = key_of(value)
        if self._unrecorded.applies and value.kind == "module":
            return self._of_code_gradient(value, dtype)
        if not value.returned and value.kind != "param":
            return self._of_returned_gradient(key, value, result.in_slot(value.site.slot), dtype)
        sources = self._gradients.get(self._forward_root(value) or -1, [])
        if not sources:
            return self._of_early_gradient(value, result, dtype)
        own_rel = _both_sides(rounding_rel(_unit(dtype))) * math.sqrt(len(sources))
        terms = list(self._unseen_terms(value, result, dtype))
        rel = math.hypot(_summed_rel(self._operands(sources), result), *(term.rel for term in terms))
        expectation = self._make(
            rel, own_rel, "call", (*sources, *(root for term in terms for root in term.sources)), key
        )
        if not expectation.tainted or any(term.tainted and term.explained is None for term in terms):
            return expectation
        explained_terms = (term.rel if term.explained is None else term.explained for term in terms)
        unaffected = _summed_rel(self._operands(sources, explained=True), result)
        return replace(expectation, explained=math.hypot(unaffected, own_rel, *explained_terms))

    def _of_code_gradient(self, value: Value, dtype: str) -> Expectation:
        """Expectation for a gradient where only calls of modules were recorded.

        It is the sum over all uses of a value, of which some may be in code between the modules.
        """
        root = self._forward_root(value)
        if root is None:
            return self._of_unseen_call(self._operand(value, None, 0.0), dtype, key_of(value))
        rel = self._unrecorded.backward_rel(value, root, dtype)
        module = self._unrecorded.innermost_user(value.site.micro, root)
        origin: Origin = "gradient" if module is None else "unrecorded"
        return Expectation(rel, 0.0, origin, self._any_tainted, call=key_of(value), explained=rel, within=module)

    def _unseen_terms(self, value: Value, result: Operand, dtype: str) -> Iterator[Expectation]:
        """Expectations for terms of a gradient that were not seen by themselves: some calls show the sum alone."""
        root = self._forward_root(value)
        for micro, phase, name, number, slot in self._uses.get(root, []) if root is not None else []:
            call = self._calls.get((micro, "bwd", name, number))
            if phase == "fwd" and call is not None and call.inputs and (micro, name, number, slot) not in self._arrived:
                yield self._of_returned_gradient((micro, "bwd", name, number), value, result.in_slot(slot), dtype)

    def _of_early_gradient(self, value: Value, result: Operand, dtype: str) -> Expectation:
        """Expectation for a gradient that arrives before that of the call that used the value."""
        terms = list(self._unseen_terms(value, result, dtype))
        if not terms:
            return self._of_module_param(value, result, dtype)
        if len(terms) == 1:
            return terms[0]
        rel, own_rel = (math.hypot(*numbers) for numbers in zip(*((term.rel, term.own) for term in terms), strict=True))
        tainted = any(term.tainted for term in terms)
        sources = tuple(root for term in terms for root in term.sources)
        return replace(terms[0], rel=rel, own=own_rel, tainted=tainted, sources=sources)

    def _of_module_param(self, value: Value, result: Operand, dtype: str) -> Expectation:
        """Expectation for a parameter's gradient where calls were not recorded.

        It is a sum of the gradients that its module received, which may cancel.
        """
        key = key_of(value)
        expectation = self._of_unseen_call(result, dtype, key)
        if self._unrecorded.applies and value.kind == "param":
            rel = self._unrecorded.backward_rel(value, None, dtype)
            expectation = replace(expectation, rel=rel, explained=rel)
        compiled = self._unrecorded.compiled_around(value.site.name) if value.kind == "param" else None
        if compiled is not None:
            own_rel = self._rounding_within(compiled, dtype)
            # As that of a bias of keys, a gradient that ought to be 0 is what rounding left.
            is_noise = (result.rms or 0.0) * math.sqrt(result.numel) <= _NOISE_FRAC * own_rel * self.largest_gradient
            rel = math.inf if is_noise else math.hypot(expectation.rel, own_rel, rounding_of_code(value, dtype))
            expectation = replace(expectation, rel=rel, explained=rel, origin="unrecorded", within=compiled)
        module, micro = value.site.name.rpartition(".")[0], value.site.micro
        call, forward = self._calls.get((micro, "bwd", module, 0)), self._calls.get((micro, "fwd", module, 0))
        if value.kind != "param" or call is None or not call.inputs:
            return expectation
        received = self._largest_received(call)
        summed = [backward_rel("add", received, [], result), _summed_rounding(received, result, dtype)]
        if self._unrecorded.applies and forward is not None and forward.inputs and len(result.shape) > 1:
            ins = [received, self._values[forward.inputs[0]].operand]
            length = max(received.numel // max(received.shape[-1:] or (1,)), 1)
            own_rel = op_rounding_rel("matmul", dtype, dtype, length, condition_of("matmul", ins, result))
            summed = [forward_rel("matmul", ins, result), _both_sides(own_rel)]
        rel = math.hypot(expectation.rel, *summed)
        return replace(expectation, rel=rel, explained=None if expectation.explained is None else rel)

    def _of_returned_gradient(self, key: CallKey, value: Value, result: Operand, dtype: str) -> Expectation:
        """Expectation for the gradient that a call's backward returns for the input in the slot of ``result``."""
        call, forward = self._calls.get(key), self._calls.get((key[0], "fwd", key[2], key[3]))
        if call is None or not call.inputs:
            return self._of_unseen_call(result, dtype, key)
        inputs, slots = (forward.inputs, forward.slots) if forward is not None else ([], [])
        if value.kind == "module" and self._is_leaf(value):
            params = [(root, name) for name, root in self._params_in(value.site.name) if root in self._values]
            inputs, slots = [*inputs, *(root for root, _ in params)], [*slots, *(name for _, name in params)]
        operands = [self._values[root].operand.in_slot(slot) for root, slot in zip(inputs, slots, strict=True)]
        received = self._largest_received(call)
        function = function_of(call.api)
        as_module = value.kind == "module" and not self._is_leaf(value)
        if as_module:
            rel = max(received.rel, call.worst_inside)
        else:
            rel = max(backward_rel(function, received, operands, result), self._decision_rel(value, inputs))
        own_rel = self._own_rounding(function, [*call.inputs, *inputs], result, dtype)
        computed_in = self._backward_dtype(call, dtype)
        own_rel = max(own_rel, _both_sides(rounding_rel(_unit(computed_in))))
        own_rel = math.hypot(own_rel, _summed_rounding(received, result, dtype, function, computed_in))
        needed = inputs
        if function in LINEAR:  # all else that the backward needs are indices
            needed = [root for root in inputs if not _is_float(self._values[root].dtype)]
        expectation = self._make(rel, own_rel, "call", (*call.inputs, *needed), key)
        if not expectation.tainted or as_module:
            return expectation
        explained = self._operands(inputs, explained=True)
        operands = [operand.in_slot(slot) for operand, slot in zip(explained, slots, strict=True)]
        unaffected = backward_rel(function, self._largest_received(call, explained=True), operands, result)
        return replace(expectation, explained=math.hypot(unaffected, own_rel))

    def _backward_dtype(self, call: _SeenCall, dtype: str) -> str:
        """Dtype in which the backward of a call computes a gradient of ``dtype``: the coarsest of those it received.

        Autocast casts a weight, and its gradient back; CPU kernels of norms add up in the dtype of the batch.
        """
        if not _is_float(dtype):
            return dtype
        for root in call.inputs:
            if _is_float(self._values[root].dtype):
                dtype = coarser(dtype, self._values[root].dtype)
        return dtype

    def _largest_received(self, call: _SeenCall, *, explained: bool = False) -> Operand:
        """Largest gradient that a backward received."""
        return max(self._operands(call.inputs, explained=explained), key=lambda operand: operand.numel)

    def _operands(self, roots: Sequence[int], *, explained: bool = False) -> list[Operand]:
        """Operands of roots; with ``explained`` as if they differed by no more than rounding explains."""
        if not explained:
            return [self._values[root].operand for root in roots]
        return [replace(seen_value.operand, rel=seen_value.explained) for seen_value in self._seen_values(roots)]

    def _of_unseen_call(self, result: Operand, dtype: str, key: CallKey) -> Expectation:
        """Expectation for a gradient whose call was not recorded: the largest difference of any value before it."""
        rel = max(self._worst_backward, self._worst) if result.numel > 1 else 0.0
        rel = math.hypot(rel, rounding_rel(_unit(dtype)) if rel else 0.0)
        return Expectation(rel, 0.0, "gradient", self._any_tainted, call=key)

    # -- parts -------------------------------------------------------------------------------------------------------

    def _make(self, rel: float, own_rel: float, origin: Origin, sources: tuple[int, ...], call: CallKey) -> Expectation:
        tainted = decided = False
        for source in self._seen_values(sources):
            tainted |= source.tainted
            decided |= source.decided
        return Expectation(math.hypot(rel, own_rel), own_rel, origin, tainted, sources, call, decided)

    def _own_rounding(self, function: str, inputs: list[int], result: Operand, dtype: str) -> float:
        if not _is_float(dtype):
            return 0.0
        floats = [self._values[root].dtype for root in inputs if _is_float(self._values[root].dtype)]
        dtype_in = coarser(dtype, self._autocast) if self._autocast and function in _CAST_WITHIN else dtype
        for input_dtype in floats[:2]:
            dtype_in = coarser(dtype_in, input_dtype) if _unit(input_dtype) < 0.1 else dtype_in
        ins = [self._values[root].operand for root in inputs]
        op_class = op_class_of(function)
        length = reduction_length(function, ins, result)
        return _both_sides(op_rounding_rel(op_class, dtype_in, dtype, length, condition_of(function, ins, result)))

    def _decision_rel(self, value: Value, inputs: list[int]) -> float:
        """Relative difference of values that depend on decisions which may differ; 0 without any.

        Decisions are integers and masks that differ, or that are computed from numbers that differ, such as the experts
        that a router chooses.
        """
        differing = [seen_value for seen_value in self._seen_values(inputs) if seen_value.operand.rel > 0]
        if not _is_float(value.dtype):
            lengths = function_of(value.api) in _OF_LENGTHS
            return UNRELATED if any(not lengths or not _is_float(seen_value.dtype) for seen_value in differing) else 0.0
        return UNRELATED if any(not _is_float(seen_value.dtype) for seen_value in differing) else 0.0

    def _is_gradient(self, value: Value) -> bool:
        """Tell whether a row of the backward pass is a gradient; calls that run in backward have arguments."""
        if value.site.phase != "bwd":
            return False
        if value.args is not None:
            self._executed_in_backward = key_of(value)
        return self._executed_in_backward is None or self._executed_in_backward != key_of(value)

    def _forward_root(self, value: Value) -> int | None:
        """Root of the forward value whose gradient this is."""
        if value.kind == "param":
            return self._by_param.get(value.site.name)
        site = value.site
        return self._forward_roots.get((site.micro, site.name, site.call, site.slot))

    def _open_modules(self, value: Value) -> list[_SeenCall]:
        """Calls of modules around a value in its phase that have not returned yet."""
        if not value.module:
            return []
        place_key = value.site.micro, value.site.phase, value.module
        if self._open_modules_cache is None or self._open_modules_cache[0] != place_key:
            self._open_modules_cache = place_key, list(self._latest_around(*place_key))
        return self._open_modules_cache[1]

    def _latest_around(self, micro: int, phase: str, module: str) -> Iterator[_SeenCall]:
        parts = module.split(".")
        for end in range(len(parts), 0, -1):
            name = ".".join(parts[:end])
            number = self._latest.get((micro, phase, name))
            if number is not None:
                yield self._calls[micro, phase, name, number]

    def _is_leaf(self, value: Value) -> bool:
        return value.site.name in self._leaves

    def _seen_values(self, roots: Sequence[int]) -> list[_SeenValue]:
        return [self._values[root] for root in roots]


_DECISIONS = (
    "relu relu6 leaky_relu hardtanh clamp abs max amax min amin maximum minimum topk sort median kthvalue max_pool1d "
    "max_pool2d max_pool3d"
)
_DECIDING = frozenset(_DECISIONS.split())
"""Functions whose backward passes a gradient on or not, or to one element of several."""

_NOISE_FRAC = 0.1
"""Fraction, of the rounding of the largest gradient in compiled code, below which a norm is taken for noise. With 1,
two thirds of the gradients of a compiled Mamba under autocast were."""

_CAST_WITHIN = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"})
"""Functions that autocast makes compute in 16 bits though their inputs and results are float32."""


def _is_backward(value: Value) -> bool:
    return value.site.phase == "bwd"


_OF_LENGTHS = frozenset({"pack_padded_sequence", "pad_packed_sequence"})
"""Functions whose integers are made of integers, whatever numbers they move."""


def _element_inputs(value: Value, call: _SeenCall) -> list[int]:
    """Inputs of ``call`` for one result.

    A function of lists (``torch._foreach_mul``) makes each tensor from those at its index in the lists, and from inputs
    that are no lists.
    """
    if "._foreach_" not in call.api:
        return list(call.inputs)
    index = value.site.slot.removeprefix("out")
    slots = [(root, slot.partition(".")[2]) for root, slot in zip(call.inputs, call.slots, strict=True)]
    return [root for root, slot_index in slots if slot_index in ("", index)]


def _summed_rel(terms: Sequence[Operand], result: Operand) -> float:
    """Relative difference of a sum of gradients, from those of its terms."""
    scale = result.rms or max((term.rms or 0.0 for term in terms), default=0.0)
    squares = sum((term.rel * (term.rms or 0.0)) ** 2 for term in terms)
    return math.sqrt(squares) / scale if scale else max(term.rel for term in terms)


def _cast_rel(value: Value, twin: Value | None) -> float:
    """Rounding of a cast between two dtypes; 0 where dtypes are equal."""
    if twin is None or twin.dtype == value.dtype or not (_is_float(value.dtype) and _is_float(twin.dtype)):
        return 0.0
    return rounding_rel(_unit(coarser(value.dtype, twin.dtype)))


def _both_sides(rel: float) -> float:
    """Rounding of both sides, which are independent of each other."""
    return math.sqrt(2) * rel


def _summed_rounding(
    received: Operand, result: Operand, dtype: str, function: str = "add", computed_in: str = ""
) -> float:
    """Rounding of a gradient that is summed over the dims that its input was broadcast to; else one rounding.

    Partial sums are float32 or finer in products, whatever the dtype. In other calls they are where ``computed_in``,
    the dtype that the backward computes in, is that of the result; norms add up in 16 bits where that is their dtype.
    """
    terms = received.numel // max(result.numel, 1)
    if terms <= 1 or not received.rms or not result.rms:
        return _both_sides(rounding_rel(_unit(dtype)))
    # No upper limit: terms that cancel altogether, as in a gradient that ought to be 0, leave nothing but rounding.
    condition = max(received.rms * math.sqrt(terms) / result.rms, 1e-3)
    if not _is_float(dtype):
        return 0.0
    op_class, computed_in = op_class_of(function), computed_in or dtype
    in_16_bits = op_class == "normalization" and _unit(computed_in) > _unit("float32")
    if op_class not in ("matmul", "matvec") and (computed_in != dtype or in_16_bits):
        return _both_sides(op_rounding_rel("scatter", computed_in, computed_in, terms, condition))
    return _both_sides(op_rounding_rel("sum", dtype, dtype, terms, condition))


def _is_float(dtype: str) -> bool:
    return dtype in UNIT_ROUNDOFF


def _unit(dtype: str) -> float:
    return UNIT_ROUNDOFF.get(dtype, 0.0)
