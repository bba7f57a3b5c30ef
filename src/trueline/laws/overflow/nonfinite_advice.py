"""Advice on a call that made a value which is not finite: by the operation, with the argument that matters and the
limits of its dtype.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trueline.judge.recorded.step_values import Value
from trueline.schema.formats import FORMATS, FloatFormat

_NOT_KNOWN = FORMATS["float32"]


@dataclass(frozen=True)
class FaultyCall:
    """A call, as far as advice needs it: ``function`` by its plain name, ``dtype`` of what it made, the tensors that it
    took, its arguments as JSON, and the line of code that called it, '' unknown.
    """

    function: str
    dtype: str
    inputs: Sequence[Value]
    args: str = ""
    line: str = ""

    @property
    def format(self) -> FloatFormat:
        """The number format of the dtype; float32 for one that is not known."""
        return FORMATS.get(self.dtype, _NOT_KNOWN)

    @property
    def inputs_text(self) -> str:
        """The tensors that it took, with their ranges."""
        return ", ".join(map(_slot_text, self.inputs)) or "its inputs"

    def at(self, position: int) -> str:
        """The argument at a position, with what is known of it: a tensor's range, or the number that was passed."""
        slot = f"in{position}"
        tensor = next((value for value in self.inputs if value.site.slot == slot), None)
        if tensor is not None:
            return _slot_text(tensor)
        number = self._passed_number(position)
        return slot if number is None else f"its argument {number}"

    def _passed_number(self, position: int) -> Any:
        try:
            positional: Any = json.loads(self.args)["args"]
            return positional[position] if not isinstance(positional[position], (dict, list)) else None
        except (ValueError, KeyError, IndexError, TypeError):
            return None

    def zeros_text(self, position: int) -> str:
        """``is 0`` or ``is 0 in places``, of the argument at a position; '' where neither is known."""
        stats = next((value.stats for value in self.inputs if value.site.slot == f"in{position}"), None)
        if stats is None or stats.min is None or stats.max is None:
            number = self._passed_number(position)
            return "is 0" if isinstance(number, int | float) and number == 0 else ""
        if stats.min == stats.max == 0:
            return "is 0"
        return f"({_range_text(stats.min, stats.max)}) is 0 in places" if 0 in (stats.min, stats.max) else ""

    @property
    def limits(self) -> str:
        """A sentence on the numbers that the dtype can hold."""
        return (
            f"{self.dtype} holds numbers up to {self.format.largest:.4g} and, above 0, down to "
            f"{self.format.smallest:.2g}; what is smaller is 0."
        )


def _slot_text(value: Value) -> str:
    """``in0 (from 0 to 3.2)``; without the range where none was measured."""
    stats = value.stats
    if stats is None or stats.min is None or stats.max is None:
        return value.site.slot
    return f"{value.site.slot} ({_range_text(stats.min, stats.max)})"


def _range_text(lowest: float, highest: float) -> str:
    return f"from {lowest:.4g} to {highest:.4g}"


Advice = Callable[[FaultyCall], str]


def _exp(call: FaultyCall) -> str:
    base = 2.0 if call.function == "exp2" else math.e
    largest = math.log(call.format.largest) / math.log(base)
    return (
        f"{call.function} overflows {call.dtype} above {largest:.4g}: look at {call.at(0)}. Subtract the largest first "
        "(softmax and logsumexp do), clamp, or compute in float32."
    )


def _log(call: FaultyCall) -> str:
    edge = "-1" if call.function == "log1p" else "0"
    return (
        f"{call.function} is -inf at {edge} and NaN below: look at {call.at(0)}. {call.limits} Clamp it from below, or "
        "use log_softmax, logsigmoid or log1p where it is the log of a probability."
    )


def _div(call: FaultyCall) -> str:
    divisor = 0 if call.function.startswith("r") else 1  # rdiv and rtruediv divide by what they are called on
    if zeros := call.zeros_text(divisor):
        nth = " (second argument)" if divisor else ""
        return (
            f"Division by zero{f' at {call.line}' if call.line else ''}: the divisor{nth} {zeros}. Add an epsilon "
            "that the dtype can hold, or leave out what is divided by 0 (a mean over no element)."
        )
    return (
        "A quotient is infinite where it is divided by 0, NaN where that is 0/0, and overflows where the divisor is "
        f"too small: look at the divisor, {call.at(divisor)}. {call.limits} Add an epsilon that the dtype can hold, or "
        "leave out what is divided by 0 (a mean over no element)."
    )


def _root(call: FaultyCall) -> str:
    pole = "infinite at 0 and " if call.function != "sqrt" else ""
    return (
        f"{call.function} is {pole}NaN below 0: look at {call.at(0)}. {call.limits} Add an epsilon inside of it that "
        "the dtype can hold."
    )


def _row(call: FaultyCall) -> str:
    return (
        f"{call.function} of a row that has nothing but -inf (all of it masked, or no element) is not finite: look at "
        f"the mask that {call.at(0)} came through, and leave such rows out or let each attend to itself."
    )


def _loss(call: FaultyCall) -> str:
    return (
        f"{call.function} is 0/0 where every label is ignored, and anything where one is out of range: look at the "
        f"labels {call.at(1)} and the number of classes of the logits {call.at(0)}; divide by the number of "
        "labels that count, if there is any."
    )


def _power(call: FaultyCall) -> str:
    base, exponent = (1, 0) if call.function == "rpow" else (0, 1)
    return (
        "A power is NaN for a negative base with a fraction as exponent, infinite for 0 with a negative one, and "
        f"overflows above {call.format.largest:.4g}: look at the base, {call.at(base)}, and the exponent, "
        f"{call.at(exponent)}."
    )


def _norm(call: FaultyCall) -> str:
    return (
        f"A norm squares first, which overflows {call.dtype} above {math.sqrt(call.format.largest):.4g}: look at "
        f"{call.at(0)}. Scale before, or compute it in float32."
    )


def _bounded(low: str, high: str) -> Advice:
    def advice(call: FaultyCall) -> str:
        return (
            f"{call.function} is defined from {low} to {high} only: look at {call.at(0)}, which rounding may have left."
        )

    return advice


def _spread(call: FaultyCall) -> str:
    return (
        f"{call.function} divides by the number of elements less 1, which is 0 for one element: look at the size of "
        f"{call.at(0)}, or pass correction=0. It squares, which overflows {call.dtype} above "
        f"{math.sqrt(call.format.largest):.4g}."
    )


def _mean(call: FaultyCall) -> str:
    return f"The mean of no element is 0/0, and a sum may overflow: look at {call.at(0)}. {call.limits}"


def _sum_of_products(call: FaultyCall) -> str:
    return f"Sums of products exceed what {call.dtype} can hold: look at {call.inputs_text}. {call.limits}"


_FORWARD: dict[str, Advice] = {
    **dict.fromkeys(("exp", "exp2", "expm1", "cosh", "sinh"), _exp),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "xlogy"), _log),
    **dict.fromkeys(("div", "truediv", "itruediv", "rtruediv", "rdiv", "divide", "true_divide", "remainder"), _div),
    **dict.fromkeys(("sqrt", "rsqrt"), _root),
    "reciprocal": lambda call: _div(replace(call, function="rdiv")),
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp", "scaled_dot_product_attention"), _row),
    **dict.fromkeys(("cross_entropy", "cross_entropy_loss", "nll_loss", "ctc_loss"), _loss),
    **dict.fromkeys(("pow", "rpow", "ipow", "float_power"), _power),
    **dict.fromkeys(("norm", "vector_norm", "matrix_norm", "normalize", "cdist", "dist"), _norm),
    **dict.fromkeys(("acos", "asin", "arccos", "arcsin"), _bounded("-1", "1")),
    **dict.fromkeys(("atanh", "arctanh"), _bounded("above -1", "below 1")),
    **dict.fromkeys(("acosh", "arccosh"), _bounded("1", "infinity")),
    **dict.fromkeys(("binary_cross_entropy", "logit"), _bounded("0", "1")),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), _spread),
    **dict.fromkeys(("mean", "nanmean"), _mean),
    **dict.fromkeys(("matmul", "rmatmul", "mm", "bmm", "linear", "addmm", "baddbmm", "einsum"), _sum_of_products),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _sum_of_products),
}

_BACKWARD: dict[str, str] = {
    **dict.fromkeys(("sqrt", "rsqrt", "pow", "log", "log2", "log10", "reciprocal", "xlogy"), "where it is 0"),
    **dict.fromkeys(("norm", "vector_norm", "cdist", "dist"), "where all that it is taken of is 0"),
    **dict.fromkeys(("div", "truediv", "itruediv", "rtruediv"), "where the divisor is 0 or close to it"),
    **dict.fromkeys(("acos", "asin", "arccos", "arcsin"), "at -1 and 1"),
    **dict.fromkeys(("atanh", "arctanh", "acosh", "arccosh"), "at the ends of where it is defined"),
    **dict.fromkeys(("atan2", "arctan2"), "where both arguments are 0"),
    **dict.fromkeys(("std", "std_mean"), "where all elements are equal"),
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp", "scaled_dot_product_attention"), "for a row of only -inf"),
    "where": "in the branch that it drops, of which the gradient is 0 times infinity",
}


def forward_advice(call: FaultyCall) -> str:
    """Advice where ``call`` returned a value that is not finite from finite ones."""
    advice = _FORWARD.get(call.function)
    return advice(call) if advice is not None else _general(call)


def backward_advice(call: FaultyCall) -> str:
    """Advice where the backward of ``call`` made such a value."""
    where = _BACKWARD.get(call.function)
    if where is None:
        return _general(call)
    return (
        f"The gradient of {call.function} is not finite {where}: look at {call.inputs_text}. Keep away from there with "
        "an epsilon or a clamp inside of the call; torch.where after it does not stop the gradient of what it drops."
    )


def _general(call: FaultyCall) -> str:
    inputs = f", {call.inputs_text}," if call.inputs else ""
    return f"Compare its inputs{inputs} with what the dtype can hold: {call.limits}"
