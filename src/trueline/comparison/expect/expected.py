"""Relative difference that rounding explains for each value of a step, value by value in the order of execution.

When a value is judged, the differences of its call's inputs are known: measured ones, or expected ones where nothing
was measured. The result is expected to differ by these, passed on as ``propagation`` says, and by the call's own
rounding on both sides (``ops``). A value that no recorded call computed is expected to be equal.

Gradients run through the same calls in the other direction: the gradient that a call's backward returns for an input
depends on the gradient that it received and on the inputs of the forward call.
"""

from __future__ import annotations

import math
from dataclasses import replace

from trueline.comparison.expect.dtypes import both_sides, cast_rel, is_float, unit
from trueline.comparison.expect.expectation import UNRELATED, Expectation, Origin
from trueline.comparison.expect.gradients import GradientExpectations
from trueline.comparison.expect.history import SeenCall
from trueline.comparison.expect.ops import op_rounding_rel
from trueline.comparison.expect.propagation import (
    Operand,
    forward_rel,
    mask_difference_rel,
)
from trueline.comparison.expect.rounding import coarser, rounding_rel
from trueline.comparison.op_names import function_of
from trueline.judge.recorded.step_values import Value, key_of


class Expected(GradientExpectations):
    """Expectations for the values of a step: query values in order, and ``learn`` each measured difference."""

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

    def again(self, value: Value) -> Expectation:
        """Expectation for a value that was seen before, with another twin than then."""
        seen_value = self._values[value.root]
        origin: Origin = "param" if value.root in self._param_roots else "wiring"
        return Expectation(seen_value.operand.rel, 0.0, origin, seen_value.tainted)

    def _of_param(self, value: Value, twin: Value | None, result: Operand, dtype: str) -> Expectation:
        name, phase = value.site.name, value.site.phase
        if phase == "grad" and name in self._grad_roots:
            source = self._grad_roots[name]
            own_rel = both_sides(rounding_rel(unit(dtype)) * math.sqrt(max(len(value.ranks), 2)))
            rel = math.hypot(self._values[source].operand.rel, self._scale_rel())
            return self._make(rel, own_rel, "call", (source,), key_of(value))
        if phase == "bwd":
            return self._of_gradient(value, result, dtype)
        if phase == "grad":
            return self._of_unseen_call(result, dtype, key_of(value))
        return Expectation(cast_rel(value, twin), 0.0, "param")

    def _scale_rel(self) -> float:
        """Largest relative difference of the norm of all gradients; clipping by it scales each of them so."""
        if self._norm_rel is None:
            self._norm_rel = self._rel_together(list(self._grad_roots.values()))
        return self._norm_rel

    def _of_given(self, value: Value, twin: Value | None) -> Expectation:
        cast = cast_rel(value, twin)
        if value.root in self._param_roots:
            return Expectation(cast, 0.0, "param")
        if self._unrecorded.applies and value.site.phase == "fwd" and value.module:
            return self._of_code(value, twin, value.site.name if value.returned else value.module)
        # Something that is not recorded may have made it from what is known.
        derived = self._worst if is_float(value.dtype) else 0.0
        tainted = self._any_tainted and is_float(value.dtype)
        return Expectation(math.hypot(cast, derived), 0.0, "given", tainted)

    def _of_code(self, value: Value, twin: Value | None, module: str, call: SeenCall | None = None) -> Expectation:
        """Expectation for a value of the unrecorded code of a module: an input of a call in it, or its own result."""
        dtype = coarser(value.dtype, twin.dtype) if twin is not None else value.dtype
        params = [root for root in self._unrecorded.params_of(module) if root in self._values]
        param_rels = [self._values[root].operand.rel for root in params]
        rel = math.hypot(cast_rel(value, twin), self._unrecorded.forward_rel(value, module, param_rels, dtype))
        expectation = Expectation(
            rel,
            0.0,
            "unrecorded",
            self._any_tainted,
            tuple(params),
            decided=rel > 0 and not is_float(value.dtype),
            explained=rel,
            within=module,
        )
        if not value.returned:
            return expectation
        sources = (*(() if call is None else call.inputs), *params)
        return replace(expectation, origin="call", sources=sources, call=key_of(value))

    def _of_call(self, value: Value, twin: Value | None, call: SeenCall, result: Operand, dtype: str) -> Expectation:
        if self._unrecorded.applies and self._unrecorded.is_code(value.site.name):
            return self._of_code(value, twin, value.site.name, call)
        by_inside = call.worst_inside or (value.site.name not in self._leaves and not self._unrecorded.applies)
        if value.kind == "module" and by_inside:
            rel = math.hypot(
                call.worst_inside, max((self._values[root].operand.rel for root in call.inputs), default=0.0)
            )
            own_rel = both_sides(op_rounding_rel("unknown", dtype, dtype)) if is_float(dtype) else 0.0
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
        own_rel = max(own_rel, cast_rel(value, twin))
        rel = max(
            forward_rel(function, ins, result) if is_float(value.dtype) else 0.0, self._decision_rel(value, inputs)
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


def _element_inputs(value: Value, call: SeenCall) -> list[int]:
    """Inputs of ``call`` for one result.

    A function of lists (``torch._foreach_mul``) makes each tensor from those at its index in the lists, and from inputs
    that are no lists.
    """
    if "._foreach_" not in call.api:
        return list(call.inputs)
    index = value.site.slot.removeprefix("out")
    slots = [(root, slot.partition(".")[2]) for root, slot in zip(call.inputs, call.slots, strict=True)]
    return [root for root, slot_index in slots if slot_index in ("", index)]
