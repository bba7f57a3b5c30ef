"""Read losses that ``backward`` is called on, and sums over tokens that they are multiples of, from their graphs.

The graph is read before it is used, and only where nothing has to be computed: from the loss down through products
with, and quotients by, what needs no gradient. Nothing of it is kept.
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trueline.capture.model.layout import local

MAX_OPERATIONS = 24
"""Operations by which losses of ranks are compared: what the script computes, and the end of the model."""
MAX_NODES = 16
"""Scalings of a loss that are looked through: there are two or three (a count of tokens, micro-batches, ranks)."""

_VIEWS = ("ToCopy", "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "Alias", "Expand")
"""Operations whose one element is that of their input."""

_SUM = 2
"""Of torch's reductions (``at::Reduction``), that which divides by nothing."""


def roots_of(tensors: Any) -> list[Tensor]:
    """Of what ``torch.autograd.backward`` was called with, floating-point tensors that have a graph and elements."""
    candidates = tensors if isinstance(tensors, Sequence) else (tensors,)
    differentiable = [tensor for tensor in candidates if isinstance(tensor, Tensor) and tensor.grad_fn is not None]
    return [tensor for tensor in differentiable if tensor.is_floating_point() and tensor.numel() > 0]


def operations_below(roots: Sequence[Tensor]) -> int:
    """A digest of the first ``MAX_OPERATIONS`` operations below ``roots``, breadth first, by their names: 32 bits."""
    pending = deque(root.grad_fn for root in roots)
    visited: list[Any] = []
    while pending and len(visited) < MAX_OPERATIONS:
        node = pending.popleft()
        if node is not None and node not in visited:
            visited.append(node)
            pending.extend(parent for parent, _ in node.next_functions)
    return zlib.crc32(" ".join(node.name() for node in visited).encode())


def losses_in(tensors: Any, gradients: Any) -> list[Tensor]:
    """The scalars among what ``torch.autograd.backward`` was called with, times the gradients that were passed."""
    losses = tensors if isinstance(tensors, Sequence) else (tensors,)
    weights = gradients if isinstance(gradients, Sequence) else (gradients,) * len(losses)
    return [
        loss if weight is None else loss * weight.detach()
        for loss, weight in zip(losses, weights, strict=False)
        if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point()
    ]


def row_of(loss: Tensor) -> Tensor:
    """float64 [3]: the loss, the sum over tokens that it is a multiple of, and their number; NaN where unknown."""
    value = local(loss).detach().to(torch.float64).reshape(())
    factor, node = _base(loss.grad_fn)
    kind = type(node).__name__
    row = value.new_full((3,), math.nan)
    row[0] = value
    if _sums(kind, node):
        row[1] = value / factor
        if kind != "SumBackward0":
            row[2] = node._saved_total_weight.detach()
    return row


def _sums(kind: str, node: Any) -> bool:
    return kind == "SumBackward0" or (kind.startswith("NllLoss") and node._saved_reduction == _SUM)


def _base(node: Any) -> tuple[float | Tensor, Any]:
    """The factor by which the result of ``node`` is that of the first node below that is no scaling, and that node."""
    factor: float | Tensor = 1.0
    for _ in range(MAX_NODES):
        kind = type(node).__name__.removesuffix("Backward0")
        parents = [parent for parent, _ in getattr(node, "next_functions", ()) if parent is not None]
        if len(parents) != 1:
            break
        if kind in ("Mul", "Div"):
            operand = node._saved_other if node.next_functions[0][0] is not None else node._saved_self
            # a constant divided by the loss is no multiple of it
            if operand is None or operand.numel() != 1 or (kind == "Div" and node.next_functions[0][0] is None):
                break
            scale = operand.detach().to(torch.float64).reshape(())
            factor = factor * scale if kind == "Mul" else factor / scale
        elif kind == "Neg":
            factor = -factor
        elif not (kind in _VIEWS or _of_one_element(kind, node)):
            break
        node = parents[0]
    return factor, node


def _of_one_element(kind: str, node: Any) -> bool:
    """True for a mean or sum of one element: of what is one number already."""
    if kind == "Mean":
        return int(node._saved_self_sym_numel) == 1
    return kind == "Sum" and math.prod(node._saved_self_sym_sizes) == 1
