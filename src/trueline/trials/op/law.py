"""What rounding is expected to make of an operation, by the laws of ``compare``, from its inputs and exact result."""

from __future__ import annotations

import math

from torch import Tensor

from trueline.comparison.expect.ops import op_rounding_rel
from trueline.comparison.expect.propagation import Operand, condition_of, reduction_length
from trueline.comparison.expect.rounding import KAPPA, UNIT_ROUNDOFF, coarser
from trueline.comparison.op_names import function_of, op_class_of

_COMPUTED_NARROW = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"})
"""Functions that autocast makes compute in 16 bits though they take and return float32."""


def expected_rel(
    api: str,
    inputs: dict[str, Tensor],
    exact: Tensor,
    dtype: str,
    *,
    autocast: str | None,
    arriving: Tensor | None = None,
) -> float:
    """The relative L2 error to expect of an output of ``dtype`` against its ``exact`` form; 0.0 for an operation that
    only moves numbers. ``arriving``: of a gradient, the one that came in.
    """
    if dtype not in UNIT_ROUNDOFF:
        return 0.0
    function = function_of(api.removesuffix(".__get__"))
    floats = {slot: x for slot, x in inputs.items() if x.is_floating_point()}
    narrow = autocast and (arriving is not None or function in _COMPUTED_NARROW or dtype == autocast)
    dtype_in = coarser(dtype, autocast) if autocast and narrow else dtype
    for x in list(floats.values())[:2]:
        dtype_in = coarser(dtype_in, str(x.dtype).removeprefix("torch."))
    ins = [operand(x, slot) for slot, x in inputs.items()]
    if arriving is not None:
        ins = [operand(arriving, ""), *ins]
    result = operand(exact, "")
    if result.rms == 0 or not result.rms:
        return 0.0
    length = reduction_length(function, ins, result)
    forward_rel = op_rounding_rel(op_class_of(function), dtype_in, dtype, length, condition_of(function, ins, result))
    if arriving is None:
        return forward_rel
    return math.hypot(forward_rel, KAPPA * UNIT_ROUNDOFF[dtype_in], _summed(ins[0], result, function, dtype_in))


def _summed(arriving: Operand, result: Operand, function: str, dtype: str) -> float:
    """The error of a gradient that is added up over dims that its input was broadcast to, or over a batch."""
    terms = arriving.numel // max(result.numel, 1)
    if terms <= 1 or not arriving.rms or not result.rms:
        return 0.0
    condition = max(arriving.rms * math.sqrt(terms) / result.rms, 1e-3)
    product = op_class_of(function) in ("matmul", "matvec")
    return op_rounding_rel("sum" if product else "scatter", dtype, dtype, terms, condition)


def operand(x: Tensor, slot: str) -> Operand:
    """The facts about a value that a law needs: rms, spread, shape."""
    wide = x.detach().cpu().double() if x.is_floating_point() else x.detach().cpu().double().abs()
    wide = wide[wide.isfinite()]
    if not wide.numel():
        return Operand(0.0, None, tuple(x.shape), slot=slot)
    rms = float(wide.square().mean().sqrt())
    std = float(wide.std(correction=0))
    least = float(wide.min())
    spread = max(rms / std, 1.0) if rms and std else 1.0
    return Operand(0.0, rms or None, tuple(x.shape), spread, slot, max(rms / least, 1.0) if least > 0 else 1.0)
