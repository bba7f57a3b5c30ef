"""Expectations for gradients, from those that a call's backward received and from the inputs of the forward call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trueline.comparison.expect.dtypes import both_sides, is_float, unit
from trueline.comparison.expect.expectation import UNRELATED, Expectation, Origin
from trueline.comparison.expect.history import History, SeenCall
from trueline.comparison.expect.ops import op_rounding_rel
from trueline.comparison.expect.propagation import (
    Operand,
    backward_rel,
    condition_of,
    forward_rel,
    reduction_length,
)
from trueline.comparison.expect.rounding import coarser, rounding_rel
from trueline.comparison.expect.unrecorded import rounding_of_code
from trueline.comparison.op_names import LINEAR, function_of, op_class_of
from trueline.judge.recorded.step_values import CallKey, Value, key_of


class GradientExpectations(History):
    """Expectations for the gradients of a step."""

    def decides(self, key: CallKey | None) -> bool:
        """Tell whether a call passes gradients by a decision on numbers that differ by rounding.

        Decisions are the sign of a number, or the largest of several.
        """
        call = None if key is None else self._calls.get((key[0], "fwd", key[2], key[3]))
        if call is None or function_of(call.api) not in _DECIDING:
            return False
        return any(seen_value.operand.rel > 0 for seen_value in self._seen_values(call.inputs))

    def _rounding_within(self, module: str, dtype: str) -> float:
        """Relative difference that a compiled ``module`` adds.

        It has the differences of its weights, left by earlier updates, and a rounding for each parameter in the
        coarsest dtype that is seen; under autocast three: of the input of a product, the parameter and the result.
        """
        names = dict(self._params_in(module)) or self._by_param
        for root in names.values():
            if root in self._values and is_float(self._values[root].dtype):
                dtype = coarser(dtype, self._values[root].dtype)
        dtype = coarser(dtype, self._autocast) if self._autocast else dtype
        num = (len(names) or 1) * (3 if self._autocast else 1)
        own_rel = both_sides(op_rounding_rel("unknown", dtype, dtype)) * math.sqrt(num) if is_float(dtype) else 0.0
        operands = [self._values[root].operand for root in names.values() if root in self._values]
        return math.hypot(own_rel, *(weight.rel for weight in operands if len(weight.shape) > 1))

    def _of_gradient(self, value: Value, result: Operand, dtype: str) -> Expectation:
        key = key_of(value)
        if self._unrecorded.applies and value.kind == "module":
            return self._of_code_gradient(value, dtype)
        if not value.returned and value.kind != "param":
            return self._of_returned_gradient(key, value, result.in_slot(value.site.slot), dtype)
        sources = self._gradients.get(self._forward_root(value) or -1, [])
        if not sources:
            return self._of_early_gradient(value, result, dtype)
        own_rel = both_sides(rounding_rel(unit(dtype))) * math.sqrt(len(sources))
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
            summed = [forward_rel("matmul", ins, result), both_sides(own_rel)]
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
        own_rel = max(own_rel, both_sides(rounding_rel(unit(computed_in))))
        own_rel = math.hypot(own_rel, _summed_rounding(received, result, dtype, function, computed_in))
        needed = inputs
        if function in LINEAR:  # all else that the backward needs are indices
            needed = [root for root in inputs if not is_float(self._values[root].dtype)]
        expectation = self._make(rel, own_rel, "call", (*call.inputs, *needed), key)
        if not expectation.tainted or as_module:
            return expectation
        explained = self._operands(inputs, explained=True)
        operands = [operand.in_slot(slot) for operand, slot in zip(explained, slots, strict=True)]
        unaffected = backward_rel(function, self._largest_received(call, explained=True), operands, result)
        return replace(expectation, explained=math.hypot(unaffected, own_rel))

    def _backward_dtype(self, call: SeenCall, dtype: str) -> str:
        """Dtype in which the backward of a call computes a gradient of ``dtype``: the coarsest of those it received.

        Autocast casts a weight, and its gradient back; CPU kernels of norms add up in the dtype of the batch.
        """
        if not is_float(dtype):
            return dtype
        for root in call.inputs:
            if is_float(self._values[root].dtype):
                dtype = coarser(dtype, self._values[root].dtype)
        return dtype

    def _of_unseen_call(self, result: Operand, dtype: str, key: CallKey) -> Expectation:
        """Expectation for a gradient whose call was not recorded: the largest difference of any value before it."""
        rel = max(self._worst_backward, self._worst) if result.numel > 1 else 0.0
        rel = math.hypot(rel, rounding_rel(unit(dtype)) if rel else 0.0)
        return Expectation(rel, 0.0, "gradient", self._any_tainted, call=key)

    def _make(self, rel: float, own_rel: float, origin: Origin, sources: tuple[int, ...], call: CallKey) -> Expectation:
        tainted = decided = False
        for source in self._seen_values(sources):
            tainted |= source.tainted
            decided |= source.decided
        return Expectation(math.hypot(rel, own_rel), own_rel, origin, tainted, sources, call, decided)

    def _own_rounding(self, function: str, inputs: list[int], result: Operand, dtype: str) -> float:
        if not is_float(dtype):
            return 0.0
        floats = [self._values[root].dtype for root in inputs if is_float(self._values[root].dtype)]
        dtype_in = coarser(dtype, self._autocast) if self._autocast and function in _CAST_WITHIN else dtype
        for input_dtype in floats[:2]:
            dtype_in = coarser(dtype_in, input_dtype) if unit(input_dtype) < 0.1 else dtype_in
        ins = [self._values[root].operand for root in inputs]
        op_class = op_class_of(function)
        length = reduction_length(function, ins, result)
        return both_sides(op_rounding_rel(op_class, dtype_in, dtype, length, condition_of(function, ins, result)))

    def _decision_rel(self, value: Value, inputs: list[int]) -> float:
        """Relative difference of values that depend on decisions which may differ; 0 without any.

        Decisions are integers and masks that differ, or that are computed from numbers that differ, such as the experts
        that a router chooses.
        """
        differing = [seen_value for seen_value in self._seen_values(inputs) if seen_value.operand.rel > 0]
        if not is_float(value.dtype):
            lengths = function_of(value.api) in _OF_LENGTHS
            return UNRELATED if any(not lengths or not is_float(seen_value.dtype) for seen_value in differing) else 0.0
        return UNRELATED if any(not is_float(seen_value.dtype) for seen_value in differing) else 0.0


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


_OF_LENGTHS = frozenset({"pack_padded_sequence", "pad_packed_sequence"})
"""Functions whose integers are made of integers, whatever numbers they move."""


def _summed_rel(terms: Sequence[Operand], result: Operand) -> float:
    """Relative difference of a sum of gradients, from those of its terms."""
    scale = result.rms or max((term.rms or 0.0 for term in terms), default=0.0)
    squares = sum((term.rel * (term.rms or 0.0)) ** 2 for term in terms)
    return math.sqrt(squares) / scale if scale else max(term.rel for term in terms)


def _summed_rounding(
    received: Operand, result: Operand, dtype: str, function: str = "add", computed_in: str = ""
) -> float:
    """Rounding of a gradient that is summed over the dims that its input was broadcast to; else one rounding.

    Partial sums are float32 or finer in products, whatever the dtype. In other calls they are where ``computed_in``,
    the dtype that the backward computes in, is that of the result; norms add up in 16 bits where that is their dtype.
    """
    terms = received.numel // max(result.numel, 1)
    if terms <= 1 or not received.rms or not result.rms:
        return both_sides(rounding_rel(unit(dtype)))
    # No upper limit: terms that cancel altogether, as in a gradient that ought to be 0, leave nothing but rounding.
    condition = max(received.rms * math.sqrt(terms) / result.rms, 1e-3)
    if not is_float(dtype):
        return 0.0
    op_class, computed_in = op_class_of(function), computed_in or dtype
    in_16_bits = op_class == "normalization" and unit(computed_in) > unit("float32")
    if op_class not in ("matmul", "matvec") and (computed_in != dtype or in_16_bits):
        return both_sides(op_rounding_rel("scatter", computed_in, computed_in, terms, condition))
    return both_sides(op_rounding_rel("sum", dtype, dtype, terms, condition))
