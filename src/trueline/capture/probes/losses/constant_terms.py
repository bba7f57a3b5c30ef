"""What is added to a loss and needs no gradient: its value, as what the parts with a gradient leave of the loss.

The graph does not keep it, and tells a detached tensor from a Python number in nothing. So the parts that need a
gradient are computed again from what their operations keep for backward, by the function that made them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trueline.capture.model.graph import shape_of, signed
from trueline.capture.model.layout import local
from trueline.capture.probes.losses.cross_entropy import SINK, ignored_index, operation_of
from trueline.capture.probes.losses.saved import saved_tensor

MAX_NODES = 128
"""Operations of a loss that are looked at, and that are computed again."""
MAX_ELEMENTS = 2**24
"""Elements of a tensor that is computed again, at most."""

_REDUCTIONS = ("none", "mean", "sum")
_LOSSES = ("MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits")
_VIEWS = ("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "Alias")
_OF_ITSELF: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Log": torch.log,
    "LogSigmoid": functional.logsigmoid,
    "Softplus": functional.softplus,
    "Relu": torch.relu,
}
"""Functions of one tensor, which their operation keeps."""


def constant_term(root: Tensor) -> tuple[int, Tensor, Tensor] | None:
    """Of a loss of one element: how many summands need no gradient, what they add to it, and the rest, float64 [], NaN
    where the rest cannot be computed; both without the factors of the whole loss. None of a loss without such a
    summand.
    """
    number = _num_constants(root.grad_fn)
    if not number:
        return None
    loss = local(root).detach().to(torch.float64).reshape(())
    value = _Computing().value(root.grad_fn, root.output_nr)
    rest = torch.full_like(loss, math.nan) if value is None else value.to(torch.float64).reshape(())
    scale = _scale(root.grad_fn)
    return number, (loss - rest) / scale, rest / scale


def _scale(node: Any) -> float | Tensor:
    """By what all of a loss is multiplied, above the first sum: a loss scale, one through the micro-batches."""
    scale: float | Tensor = 1.0
    for _ in range(MAX_NODES):
        operation, edges = operation_of(node), node.next_functions
        below = [edge for edge in edges if edge[0] is not None]
        if operation not in ("Mul", "Div", "Neg", "ToCopy", *_VIEWS) or len(below) != 1:
            break
        if operation == "Neg":
            scale = -scale
        elif operation in ("Mul", "Div"):
            number = saved_tensor(node, "other" if edges[0][0] is not None else "self")
            if number is None or number.numel() != 1 or (operation == "Div" and edges[0][0] is None):
                break
            number = number.to(torch.float64).reshape(())
            scale = scale * number if operation == "Mul" else scale / number
        node = below[0][0]
    return scale


def _num_constants(root: Any) -> int:
    """Summands without a gradient of sums of single numbers; what such a sum is multiplied by is a number, too."""
    ahead, visited, number = [root], set[Any](), 0
    while ahead and len(visited) < MAX_NODES:
        node = ahead.pop()
        if node is None or node in visited or _numel(node) != 1:
            continue
        visited.add(node)
        operation, below = operation_of(node), [edge[0] for edge in node.next_functions]
        if operation in ("Add", "Sub"):
            number += below.count(None)
            ahead += below
        elif operation in ("Mul", "Div", "Neg", "ToCopy", *_VIEWS):
            ahead += below
        elif operation in ("Mean", "Sum") and operation_of(below[0]) == "Stack":
            number += [edge[0] for edge in below[0].next_functions].count(None)
            ahead += [edge[0] for edge in below[0].next_functions]
    return number


class _Computing:
    """Computes what operations returned, where what needs no gradient is 0 in sums of single numbers."""

    def __init__(self) -> None:
        self._num_left = MAX_NODES

    def value(self, node: Any, output: int = 0) -> Tensor | None:
        """None where what is needed was not kept, or the operation is none of those that are known here."""
        self._num_left -= 1
        if node is None or self._num_left < 0 or _numel(node, output) > MAX_ELEMENTS:
            return None
        if hasattr(node, "variable"):
            return local(node.variable.detach())
        operation, edges = operation_of(node), node.next_functions
        if operation == SINK:
            return self.value(*edges[output]) if output < len(edges) else None
        if (result := saved_tensor(node, "result")) is not None:
            return result
        if operation.startswith("NllLoss") or operation in _LOSSES:
            return _loss(operation, node)
        if operation in _OF_ITSELF or operation == "Pow":
            return _of_itself(operation, node)
        return self._of_parts(operation, node)

    def _of_parts(self, operation: str, node: Any) -> Tensor | None:
        if operation in ("Add", "Sub"):
            return self._sum(operation, node)
        if operation in ("Mul", "Div"):
            return self._scaled(operation, node)
        if operation == "Stack":
            return self._stacked(node)
        edges = node.next_functions
        x = (
            self.value(*edges[0])
            if len(edges) == 1 and operation in ("Neg", "ToCopy", "Mean", "Sum", *_VIEWS)
            else None
        )
        if x is None or operation == "Neg":
            return None if x is None else -x
        if operation in ("Mean", "Sum"):
            return _reduced(operation, node, x)
        return x.reshape(shape_of(node)) if x.numel() == _numel(node) else None

    def _sum(self, operation: str, node: Any) -> Tensor | None:
        parts = [None if edge[0] is None else self.value(*edge) for edge in node.next_functions]
        constant = [edge[0] is None for edge in node.next_functions]
        if any(constant) and _numel(node) != 1:
            return None
        if any(part is None and not is_constant for part, is_constant in zip(parts, constant, strict=True)):
            return None
        alpha = float(node._saved_alpha) * (1 if operation == "Add" else -1)
        first, second = (0.0 if part is None else part for part in parts)
        total = first + alpha * second
        return total if isinstance(total, Tensor) else None

    def _scaled(self, operation: str, node: Any) -> Tensor | None:
        factors = [saved_tensor(node, name) for name in ("self", "other")]
        for at, edge in enumerate(node.next_functions):
            if factors[at] is None and edge[0] is not None:
                factors[at] = self.value(*edge)
        first, second = factors
        if first is None or second is None:
            return None
        return first * second if operation == "Mul" else first / second

    def _stacked(self, node: Any) -> Tensor | None:
        parts = [None if edge[0] is None else self.value(*edge) for edge in node.next_functions]
        values = [part for part in parts if part is not None]
        if len(values) < sum(edge[0] is not None for edge in node.next_functions) or not values:
            return None
        if any(value.numel() != 1 for value in values):
            return None
        return torch.stack([values[0].new_zeros(()) if part is None else part.reshape(()) for part in parts])


def _loss(operation: str, node: Any) -> Tensor | None:
    x, target, weight = (saved_tensor(node, name) for name in ("self", "target", "weight"))
    if x is None or target is None or (weight is None and getattr(node, "_saved_weight", None) is not None):
        return None
    reduction = _REDUCTIONS[int(node._saved_reduction)]
    if operation == "SmoothL1Loss":
        return functional.smooth_l1_loss(x, target, reduction=reduction, beta=float(node._saved_beta))
    if operation == "HuberLoss":
        return functional.huber_loss(x, target, reduction=reduction, delta=float(node._saved_delta))
    if operation == "MseLoss":
        return functional.mse_loss(x, target, reduction=reduction)
    if operation == "BinaryCrossEntropy":
        return functional.binary_cross_entropy(x, target, weight, reduction=reduction)
    if operation == "BinaryCrossEntropyWithLogits":
        balance = saved_tensor(node, "pos_weight")
        return functional.binary_cross_entropy_with_logits(x, target, weight, reduction=reduction, pos_weight=balance)
    return functional.nll_loss(x, target, weight, ignore_index=ignored_index(node), reduction=reduction)


def _of_itself(operation: str, node: Any) -> Tensor | None:
    x = saved_tensor(node, "self")
    if x is None:
        return None
    return x ** float(node._saved_exponent) if operation == "Pow" else _OF_ITSELF[operation](x)


def _reduced(operation: str, node: Any, x: Tensor) -> Tensor | None:
    """The mean or sum of all elements, or along the dimensions that were kept."""
    if x.numel() != math.prod(node._saved_self_sym_sizes):
        return None
    reduce = torch.mean if operation == "Mean" else torch.sum
    if not hasattr(node, "_saved_dim"):
        return reduce(x)
    if node._saved_dim is None:
        return reduce(x).reshape(shape_of(node))
    dims = [signed(dim) for dim in node._saved_dim]
    return reduce(x.reshape(tuple(node._saved_self_sym_sizes)), dim=dims, keepdim=bool(node._saved_keepdim))


def _numel(node: Any, output: int = 0) -> int:
    return math.prod(shape_of(node, output))
