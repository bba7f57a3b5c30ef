"""Propagation of differences through a call: the relative difference to expect of its result, from its inputs'.

Differences are relative in the L2 norm: r of a value x means that ‖δ‖ = r·‖x‖. Every law below is the first-order error
analysis of its call with δ independent of the values, so that a sum of squares stands for a sum (Higham, Accuracy and
Stability of Numerical Algorithms, 2nd ed., ch. 1 and 3): what is expected, not a bound. A call without a law of its own
is assumed to change no number by more than its input was changed, as almost all activation functions do.

Letters: r relative difference, K terms of a sum.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from trueline.comparison.op_names import OpClass, op_class_of
from trueline.judge.recorded.step_values import Value
from trueline.schema.fact import fact
from trueline.schema.formats import FORMATS, MASKS

_SOFTMAXES = frozenset({"softmax", "log_softmax", "logsumexp", "softmin"})
_FACTORS = frozenset({"mul", "div", "truediv", "pow", "reciprocal", "rsqrt", "sqrt", "square", "prod"})
_POWERS = {"pow": 2.0, "square": 2.0, "sqrt": 0.5, "rsqrt": 0.5}
"""Factors by which a relative difference grows in a power; ``pow`` has the exponent that is used most."""

_THROUGH_ZERO = frozenset(
    {"gelu", "silu", "relu", "tanh", "elu", "selu", "celu", "mish", "hardswish", "leaky_relu", "erf", "expm1", "log1p"}
)
"""Functions that scale a number by a factor that hardly depends on it, and so keep relative differences."""

_MEANS = frozenset({"mean", "nanmean"})

_NORMS = frozenset({"norm", "vector_norm", "matrix_norm"})


@fact()
class Operand:
    """Facts of a value that laws take.

    ``rel`` is its relative difference, ``rms`` that of its numbers (None: not measured), ``spread`` the rms over the
    standard deviation (1 for mean zero), ``excess`` the rms over the smallest number where all are positive.
    """

    rel: float
    rms: float | None
    shape: tuple[int, ...]
    spread: float = 1.0
    slot: str = ""
    excess: float = 1.0

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def in_slot(self, slot: str) -> Operand:
        """Move the operand to another slot of a call."""
        if slot == self.slot:
            return self
        return Operand(self.rel, self.rms, self.shape, self.spread, slot, self.excess)


def size_of(value: Value) -> tuple[float | None, float, float]:
    """``rms``, ``spread`` and ``excess`` of an ``Operand`` that has the numbers of ``value``."""
    stats = value.stats
    if stats is None or not stats.finite:
        return None, 1.0, 1.0
    if is_masked(value) or is_swamped(value):
        projections = stats.projections if is_masked(value) else None  # projections leave masks out
        size = (
            abs(stats.max or 0.0)
            if projections is None
            else math.hypot(*projections) / math.sqrt(len(projections) * stats.numel)
        )
        return size or None, 1.0, 1.0
    rms, std = stats.rms, stats.std
    smallest = stats.min or 0.0
    return (
        rms or None,
        max(rms / std if rms and std else 1.0, 1.0),
        max(rms / smallest if rms and smallest > 0 else 1.0, 1.0),
    )


def is_swamped(value: Value) -> bool:
    """Tell whether some numbers are so low, as masks of -1e9, that statistics hide the differences of all others."""
    stats = value.stats
    if stats is None or stats.min is None or stats.max is None or value.dtype not in FORMATS:
        return False
    return stats.min < -_SWAMPED * max(abs(stats.max), 1.0) and not (is_masked(value) and stats.projections is not None)


_SWAMPED = 1e3
"""Ratio of the lowest number to the highest from which on it is taken for a mask."""


def is_masked(value: Value) -> bool:
    """Tell whether some numbers are as low as the dtype allows; softmax maps them to 0, and only others have a size."""
    low = None if value.stats is None else value.stats.min
    return low is not None and low <= -MASKS.get(value.dtype, math.inf)


def mask_difference_rel(value: Value, twin: Value | None) -> float:
    """Relative difference of two masks whose lowest numbers belong to different dtypes."""
    if twin is None or value.stats is None or twin.stats is None or not (is_masked(value) and is_masked(twin)):
        return 0.0
    lowest, twin_lowest = value.stats.min or 0.0, twin.stats.min or 0.0
    return abs(lowest - twin_lowest) / abs(twin_lowest) if math.isfinite(lowest) and math.isfinite(twin_lowest) else 0.0


def reduction_length(function: str, ins: Sequence[Operand], result: Operand) -> int:
    """Number of terms of a call's sums, as ``ops.LAWS`` defines it for its class; at least 1."""
    if not ins:
        return 1
    ins = factors_first(function, ins)
    first, kind = ins[0], _class_of(function)
    row = first.shape[-1] if first.shape else 1
    if function.startswith("conv") and len(ins) > 1:
        return max(math.prod(ins[1].shape[1:]), 1)
    if kind in ("product", "norm", "softmax", "loss"):
        return max(row, 1)
    if kind == "scatter":
        return _per_sum(function, ins, result) + 1
    if kind == "attention":
        return max(row + (ins[1].shape[-2] if len(ins) > 1 and len(ins[1].shape) > 1 else 0), 1)
    return max(first.numel // max(result.numel, 1), 1)


def condition_of(function: str, ins: Sequence[Operand], result: Operand) -> float:
    """Condition of a call, from measured norms, as ``ops.LAWS`` defines it for its class; 1 without one."""
    kind = _class_of(function)
    ins = factors_first(function, ins)
    if kind == "scatter" and ins and result.rms:
        added = _added(function, ins)
        return _bounded(
            math.hypot(ins[0].rms or 0.0, (added.rms or 0.0) * math.sqrt(_share(added, result))) / result.rms
        )
    if not result.rms or not ins or not ins[0].rms:
        return 1.0
    if kind == "product" and len(ins) > 1 and ins[1].rms:
        return _bounded(ins[0].rms * ins[1].rms * math.sqrt(reduction_length(function, ins, result)) / result.rms)
    if kind in ("sum", "mean"):
        length = reduction_length(function, ins, result)
        return _bounded(ins[0].rms * math.sqrt(length) / (result.rms * (length if kind == "mean" else 1)))
    return _bounded(ins[0].spread) if kind == "norm" else 1.0


def _bounded(condition: float) -> float:
    return min(max(condition, 1e-3), _MAX_CONDITION)


def forward_rel(function: str, ins: Sequence[Operand], result: Operand) -> float:
    """Relative difference of ``result`` to expect from those of ``ins`` alone (exact arithmetic within the call)."""
    if not any(operand.rel > 0 for operand in ins):
        return 0.0
    if function in _POWERS:
        return _powered(function, ins, result)
    if _class_of(function) == "scatter":
        return _scattered(function, ins, result)
    return _FORWARD.get(_class_of(function), _additive)(factors_first(function, ins), result)


def factors_first(function: str, ins: Sequence[Operand]) -> Sequence[Operand]:
    """Factors of a product, then its addend, which ``addmm`` and the like take first."""
    return [*ins[1:], ins[0]] if function in _ADDEND_FIRST and len(ins) > 2 else ins


_ADDEND_FIRST = frozenset({"addmm", "addmv", "addbmm", "baddbmm"})


def backward_rel(function: str, received: Operand, ins: Sequence[Operand], result: Operand) -> float:
    """Relative difference to expect of a gradient ``result`` that a call's backward returns for one of its inputs.

    ``received`` is the gradient that the backward received, ``ins`` are the inputs of the forward call, ``result`` has
    the slot of the input whose gradient it is.
    """
    kind = _class_of(function)
    factors = factors_first(function, ins)[:2]
    other_factors = [operand for operand in factors if operand.slot != result.slot]
    if kind == "product" and len(other_factors) < len(factors):
        return _product([received, *other_factors], result)
    if kind == "additive" and op_class_of(function) == "activation":
        kind = "activation"  # exp and the like: the slope depends on the argument
    if kind in ("move", "additive", "product"):
        return _passed(received, result)
    if function in _STEPPED:
        return math.hypot(
            _passed(received, result), _turned(max((operand.rel for operand in ins), default=0.0), result.numel)
        )
    if function == "softmax" and received.rms and result.shape:
        # Multiplied by weights that add up to 1 over a row of n: their rms is at most 1/sqrt(n).
        received = replace(received, rms=received.rms / math.sqrt(max(result.shape[-1], 1)))
    logits = _logits(ins) if kind == "attention" else max((operand.rms or 1.0 for operand in ins[:1]), default=1.0)
    inputs_rel = math.hypot(*(operand.rel for operand in ins))
    factor = max(1.0, logits) if kind in ("attention", "softmax", "loss", "activation") else 1.0
    return math.hypot(_passed(received, result), _steepness(kind) * factor * inputs_rel * _ratio(received, result))


@functools.cache
def _class_of(function: str) -> str:
    if function in _SOFTMAXES:
        return "softmax"
    if function in _THROUGH_ZERO:
        return "through zero"
    if function in _FACTORS:
        return "factors"
    if function in _NORMS:
        return "size"
    if function in ("addcdiv", "addcmul"):
        return "quotient" if function == "addcdiv" else "product added"
    if function in _MEANS:
        return "mean"
    return _KINDS.get(op_class_of(function), "additive")


def _steepness(kind: str) -> float:
    """Factor by which the derivative is steeper than the function: that of a norm subtracts two projections."""
    return 3.0 if kind in ("norm", "attention", "softmax") else 1.5


def _turned(rel: float, numel: int) -> float:
    """Of a gradient that passes where its input is positive: of n numbers with a normal density, each off by r, r/π
    change their sign (∫∫ φ over x < 0 < x + δ), and with it a number of the gradient, of which half are not zero. Where
    hardly one does, nothing differs.
    """
    turned = numel * min(rel, 1.0) / math.pi
    return math.sqrt(2 * max(turned, 1.0) / numel) if turned > _HARDLY_ONE else 1.5 * rel


_STEPPED = frozenset({"relu", "relu6", "leaky_relu", "hardtanh"})
"""Functions whose slope is a step."""

_HARDLY_ONE = 0.05


def _ratio(source: Operand, result: Operand) -> float:
    """Quotient of the sizes of ``source`` and ``result``; at least 1."""
    if not source.rms or not result.rms:
        return 1.0
    return max(1.0, source.rms / result.rms)


def _passed(received: Operand, result: Operand) -> float:
    """A gradient that is broadcast, gathered or scaled, also one that is summed over rows that were one row before."""
    terms = max(received.numel / max(result.numel, 1), 1.0)
    if not received.rms or not result.rms:
        return received.rel
    return received.rel * max(1.0, received.rms * math.sqrt(terms) / result.rms)


def _additive(ins: Sequence[Operand], result: Operand) -> float:
    """‖δ out‖² = Σ‖δ in‖²; numbers of an input that is broadcast are equally wrong wherever they are used."""
    if result.rms:
        return math.hypot(*(operand.rel * (operand.rms or result.rms) for operand in ins)) / result.rms
    return math.hypot(*(operand.rel for operand in ins))


def _powered(function: str, ins: Sequence[Operand], result: Operand) -> float:
    """Roots make more of the differences of small numbers. With δ of one size for all numbers, ‖δ√x‖² = Σδ²/4x is
    about ‖δ‖²/4 over the mean of x, and over the smallest x where many are small; what divides has its largest results
    where x is smallest.
    """
    small = 1.0
    if function == "rsqrt":
        small = max((operand.excess for operand in ins), default=1.0)
    elif function == "sqrt" and ins and ins[0].rms and result.rms:
        small = max(ins[0].rms / result.rms / result.rms, math.sqrt(ins[0].rms * ins[0].excess) / result.rms, 1.0)
    return min(small, _MAX_CONDITION) * _POWERS[function] * math.hypot(*(operand.rel for operand in ins))


def _through_zero(ins: Sequence[Operand], result: Operand) -> float:
    """GELU's slope is up to 1.13 times its value over its argument."""
    del result
    return 1.2 * math.hypot(*(operand.rel for operand in ins))


def _factors(ins: Sequence[Operand], result: Operand) -> float:
    """Relative differences of factors add up; more where large numbers meet small ones."""
    size = math.prod(operand.rms or 1.0 for operand in ins if operand.numel > 1)
    all_measured = all(operand.rms for operand in ins) and result.rms
    excess = max(1.0, size / result.rms) if all_measured and result.rms and len(ins) > 1 else 1.0
    return min(excess, _MAX_CONDITION) * _compound(ins)


def _compound(factors: Sequence[Operand]) -> float:
    """‖Π(1 + δ) - 1‖ for unrelated δ: differences of factors add up while they are small, and multiply when not."""
    return math.sqrt(math.expm1(sum(math.log1p(operand.rel**2) for operand in factors)))


def _size(ins: Sequence[Operand], result: Operand) -> float:
    """| ‖x + δ‖ - ‖x‖ | <= ‖δ‖: of a norm, as much where all numbers are off by one factor."""
    del result
    return max(operand.rel for operand in ins)


def _product_added(ins: Sequence[Operand], result: Operand) -> float:
    """Of x + value·a·b, Adam's second moment."""
    if len(ins) < 3:
        return _factors(ins, result)
    addend = ins[0]
    share = addend.rel * (addend.rms or 0.0) / result.rms if result.rms else addend.rel
    return math.hypot(share, 2 * _compound(ins[1:3]))


def _quotient(ins: Sequence[Operand], result: Operand) -> float:
    """Of x + value·n/d, Adam's update: where n is as small as its difference, n/d has the wrong sign. Of numbers with
    density at zero the share of such ones is about r, and each is off by twice its size: 2·sqrt(r) of the quotient.
    A numerator that is noise, and larger in one run, is off by its r.
    """
    if len(ins) < 3 or not result.rms:
        return _additive(ins, result)
    addend, numerator, denominator = ins[0], ins[1], ins[2]
    quotient = (numerator.rms or 1.0) / denominator.rms if denominator.rms else 1.0
    moved = max(2 * math.sqrt(min(numerator.rel + denominator.rel, 1.0)), numerator.rel) * quotient
    return math.hypot(addend.rel * (addend.rms or result.rms) / result.rms, moved / result.rms)


def _product(ins: Sequence[Operand], result: Operand) -> float:
    """‖δA·B‖ = ‖δA‖·‖B‖/sqrt(K) for δA unrelated to B, which over ‖AB‖ is the condition; at least 1."""
    if len(ins) < 2 or not ins[0].rms or not ins[1].rms or not result.rms:
        return math.hypot(*(operand.rel for operand in ins))
    terms = max(math.sqrt(ins[0].numel * ins[1].numel / max(result.numel, 1)), 1.0)
    batches = max(
        min(ins[0].numel, ins[1].numel) / max(terms * max(result.shape[-1] if result.shape else 1, 1), 1.0), 1.0
    )
    condition = ins[0].rms * ins[1].rms * math.sqrt(terms / math.sqrt(batches)) / result.rms
    grown_rel = max(1.0, min(condition, _MAX_CONDITION)) * math.hypot(ins[0].rel, ins[1].rel)
    return math.hypot(grown_rel, *(operand.rel * (operand.rms or 0.0) / result.rms for operand in ins[2:]))


def _norm(ins: Sequence[Operand], result: Operand) -> float:
    """Rows are divided by their own size; where a mean is subtracted, the rest is smaller by ``spread``."""
    first, rest = ins[0], ins[1:]
    return math.hypot(1.5 * min(first.spread, _MAX_CONDITION) * first.rel, *(operand.rel for operand in rest))


def _softmax(ins: Sequence[Operand], result: Operand) -> float:
    """Softmax turns absolute differences of its logits into relative ones."""
    return _PEAKED * (ins[0].rms or 1.0) * ins[0].rel


def _attention(ins: Sequence[Operand], result: Operand) -> float:
    """Absolute differences of the logits, as softmax has them, and those of the values that are averaged."""
    if len(ins) < 3:
        return _additive(ins, result)
    return math.hypot(_PEAKED * _logits(ins) * math.hypot(ins[0].rel, ins[1].rel), ins[2].rel * _ratio(ins[2], result))


def _logits(ins: Sequence[Operand]) -> float:
    """Rms of q·k/sqrt(d) for unrelated q and k."""
    if len(ins) < 2 or not ins[0].rms or not ins[1].rms:
        return 1.0
    return min(ins[0].rms * ins[1].rms, _MAX_CONDITION)


def _averaged(ins: Sequence[Operand], result: Operand) -> float:
    """A sum or mean of K terms: differences grow with sqrt(K) where the terms grow with K, and ``_SHARED`` times that
    where terms share some of theirs; at most as much as if they all were the same.
    """
    first = ins[0]
    terms = max(first.numel / max(result.numel, 1), 1.0)
    if not first.rms or not result.rms:
        return first.rel
    return first.rel * min(_ratio(first, result), first.rms / result.rms * _SHARED / math.sqrt(terms))


def _summed(ins: Sequence[Operand], result: Operand) -> float:
    first = ins[0]
    terms = max(first.numel / max(result.numel, 1), 1.0)
    if not first.rms or not result.rms:
        return first.rel
    max_growth = max(1.0, first.rms * terms / result.rms)
    return first.rel * min(max_growth, first.rms * math.sqrt(terms) / result.rms * _SHARED)


def _scattered(function: str, ins: Sequence[Operand], result: Operand) -> float:
    """‖δ out‖² = ‖δ‖² of what is added to, and of what is added."""
    added = _added(function, ins)
    target = None if added is ins[0] or function == "embedding_bag" else ins[0]
    if not result.rms:
        return math.hypot(added.rel, 0.0 if target is None else target.rel)
    moved = added.rel * (added.rms or 0.0) * math.sqrt(_share(added, result))
    return math.hypot(moved, 0.0 if target is None else target.rel * (target.rms or 0.0)) / result.rms


def _added(function: str, ins: Sequence[Operand]) -> Operand:
    """Operand that a call adds up by indices: its last tensor, of ``embedding_bag`` the rows of its weight."""
    return ins[1] if function == "embedding_bag" and len(ins) > 1 else ins[-1]


def _share(added: Operand, result: Operand) -> float:
    return added.numel / max(result.numel, 1)


def _per_sum(function: str, ins: Sequence[Operand], result: Operand) -> int:
    """Terms of the longest sums, which get a few times as many as others."""
    terms = ins[0].numel if function == "embedding_bag" else ins[-1].numel
    sums = result.numel // (result.shape[-1] if function == "embedding_bag" and result.shape else 1)
    return max(_UNEVEN * terms // max(sums, 1), 1)


_UNEVEN = 4
"""Ratio of the longest sum of a scatter to the usual one."""


def _loss(ins: Sequence[Operand], result: Operand) -> float:
    """A mean of differences between logits, which does not average out where one cause is behind all of them."""
    return ins[0].rel * max(1.0, (ins[0].rms or 1.0) / (result.rms or 1.0))


_PEAKED = 2.0
"""Ratio of the logits that get most of the weight to the usual logit."""

_SHARED = 4.0
"""Ratio of the difference of a sum to that of a sum of unrelated terms: terms of one row share the differences of their
inputs (up to 19 in ``benchmarks/rounding``, in the worst op).
"""

_MAX_CONDITION = 1e3
"""Largest condition assumed of one call: statistics alone do not show where numbers cancel."""

_KINDS: Mapping[OpClass, str] = {
    "exact": "move",
    "matmul": "product",
    "matvec": "product",
    "normalization": "norm",
    "attention": "attention",
    "loss": "loss",
    "sum": "sum",
    "scatter": "scatter",
}

_FORWARD: Mapping[str, Callable[[Sequence[Operand], Operand], float]] = {
    "through zero": _through_zero,
    "product": _product,
    "norm": _norm,
    "softmax": _softmax,
    "attention": _attention,
    "loss": _loss,
    "factors": _factors,
    "size": _size,
    "quotient": _quotient,
    "product added": _product_added,
    "mean": _averaged,
    "sum": _summed,
}
