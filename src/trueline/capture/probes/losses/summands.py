"""The summands of a loss, and by what each of them is multiplied and divided, read from its graph.

From what ``backward`` is called on down through sums, products with numbers and quotients by numbers; the graph is read
before backward uses it, and nothing of it is kept. Letters: N targets, C classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trueline.capture.model.graph import is_hooked
from trueline.capture.model.layout import local
from trueline.capture.probes.losses.cross_entropy import SINK, ignored_index, operation_of
from trueline.capture.probes.losses.saved import saved_tensor

MAX_SUMMANDS = 48
"""Of a loss that has more, as of a penalty for each parameter, nothing is said."""
MAX_CLASSES = 1024
"""Of more classes, as of the tokens of a language model, targets are not counted by class."""
MAX_NODES = 256
"""Operations that are looked at in one loss."""

_SAME_VALUE = re.compile(
    f"ToCopy|View|UnsafeView|ReshapeAlias|Clone|Squeeze|Unsqueeze|Alias|Expand|Permute|Transpose|T|{SINK}"
)
"""Operations whose elements are those of their input."""
_LINEAR = re.compile("Sum|Mean|Index|Slice|Select|IndexSelect|MaskedSelect|MaskedFill|Where|NanToNum")
"""Operations whose result is a sum over, or a choice of, elements of what needs a gradient."""
_NAMES = (
    ("NllLoss", "cross-entropy"),
    ("CrossEntropy", "cross-entropy"),
    ("BinaryCrossEntropy", "binary cross-entropy"),
    ("CtcLoss", "CTC loss"),
    ("CudnnCtcLoss", "CTC loss"),
    ("MseLoss", "mean squared error"),
    ("SmoothL1Loss", "smooth L1 loss"),
    ("HuberLoss", "Huber loss"),
    ("CompiledFunction", "compiled code"),
)
"""Beginnings of the names of operations, and what these compute; ``CrossEntropy`` anywhere in one is a fused kernel."""
_MEAN, _SUM = 1, 2
"""Of torch's reductions (``at::Reduction``)."""

Scalar = float | Tensor


@dataclass(frozen=True)
class Summand:
    """One part of a loss: what computes it ('' for what has no name), the numbers that it alone is multiplied and
    divided by, whether a mean is taken on the way, the operation that it ends at, the first reduction on the way:
    "Mean", "Sum" or none, and constants of several elements that it is multiplied by, as samples are weighed.
    """

    function: str
    multipliers: tuple[Scalar, ...]
    divisors: tuple[Scalar, ...]
    averages: bool
    node: Any
    reduction: str = ""
    weighing: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Summands:
    """What a loss is the sum of; ``multipliers`` and ``divisors`` are of all of it."""

    multipliers: tuple[Scalar, ...]
    divisors: tuple[Scalar, ...]
    parts: Sequence[Summand]


@dataclass(frozen=True)
class _Way:
    """From the loss to an edge of its graph."""

    node: Any
    output: int
    multipliers: tuple[Scalar, ...] = ()
    divisors: tuple[Scalar, ...] = ()
    averages: bool = False
    reduction: str = ""
    weighing: tuple[Tensor, ...] = ()

    def to(self, edge: Any, *, multiplier: Scalar | None = None, divisor: Scalar | None = None) -> _Way:
        more = () if multiplier is None or _is_one(multiplier) else (multiplier,)
        less = () if divisor is None or _is_one(divisor) else (divisor,)
        operation = operation_of(self.node)
        reduces = not self.reduction and operation in ("Mean", "Sum") and _num_reduced(self.node) > 1
        reduction = operation if reduces else self.reduction
        averages = self.averages or operation == "Mean"
        factors = self.multipliers + more, self.divisors + less
        return _Way(edge[0], edge[1], *factors, averages, reduction, self.weighing)


def summands_of(root: Tensor) -> Summands | None:
    """The summands of a loss of one element; None where it has more than ``MAX_SUMMANDS``."""
    trunk = _scaled(_Way(root.grad_fn, root.output_nr), MAX_NODES)
    branches = _branches(trunk)
    if not branches:
        return Summands((), (), [_summand(trunk)])
    ahead = [_beyond(way, trunk) for way in branches]
    parts: list[Summand] = []
    for _ in range(MAX_NODES):
        if not ahead or len(parts) > MAX_SUMMANDS:
            break
        way = _scaled(ahead.pop(0), MAX_NODES)
        if below := _branches(way):
            ahead = [*below, *ahead]
        else:
            parts.append(_summand(way))
    if ahead or len(parts) > MAX_SUMMANDS:
        return None
    return Summands(trunk.multipliers, trunk.divisors, parts)


def cross_entropy_of(node: Any) -> tuple[Tensor, Tensor] | None:
    """Of the node of a cross-entropy of torch its mean over the targets that count, and their number, float64 []; None
    of any other, where classes have weights, or where hooks keep what it saved.
    """
    if not operation_of(node).startswith("NllLoss") or node._saved_weight is not None:
        return None
    if any(is_hooked(saved) for saved in (node._raw_saved_self, node._raw_saved_target)):
        return None
    log_probs, target = local(node._saved_self.detach()), local(node._saved_target.detach())
    if log_probs.dim() != target.dim() + 1 or not target.numel():
        return None
    counts = target != ignored_index(node)
    at_target = log_probs.gather(min(1, target.dim()), target.where(counts, 0).unsqueeze(min(1, target.dim())))
    number = counts.sum().to(torch.float64)
    total = -at_target.squeeze(min(1, target.dim())).to(torch.float64).where(counts, 0.0).sum()
    return total / number, number


def class_counts(node: Any) -> Tensor | None:
    """Of the node of a cross-entropy of torch, int64 [2 + C]: the number of classes C, of targets that count, and of
    those of each class, which are left out of more than ``MAX_CLASSES``. None of any other, or where hooks keep what it
    saved.
    """
    if not operation_of(node).startswith("NllLoss"):
        return None
    if any(is_hooked(saved) for saved in (node._raw_saved_self, node._raw_saved_target)):
        return None
    log_probs, target = node._saved_self, local(node._saved_target.detach()).flatten()
    if log_probs.dim() < 2 or not target.numel():
        return None
    num_classes = int(log_probs.shape[1])
    counts = (target != ignored_index(node)).long()
    head = torch.stack([torch.full_like(counts[0], num_classes), counts.sum()])
    if num_classes > MAX_CLASSES:
        return head
    of_classes = counts.new_zeros(num_classes).scatter_add_(0, target.where(counts > 0, 0), counts)
    return torch.cat([head, of_classes])


def target_variance(node: Any) -> Tensor | None:
    """Of the node of a mean squared error, float64 [1]: the variance of its targets [B, ...] over samples, in the mean
    over what each sample has; it is the error of the best prediction that is the same for all samples. None of any
    other, of fewer than two samples, or where hooks keep what it saved.
    """
    if operation_of(node) != "MseLoss" or is_hooked(node._raw_saved_target):
        return None
    target = local(node._saved_target.detach())
    if target.dim() == 0 or len(target) < 2 or not target.numel() or target.is_complex():
        return None
    return target.to(torch.float32).var(0).mean().to(torch.float64)[None]


def averages_itself(node: Any) -> bool:
    """True of a cross-entropy of torch that averages over its targets by itself."""
    return int(node._saved_reduction) == _MEAN


def is_mean(part: Summand) -> bool:
    """True of a part that is a mean, and no sum, before it is multiplied by anything: of a function of torch by its
    reduction, else by the first reduction on the way.
    """
    return part.reduction == "Mean" or (not part.reduction and getattr(part.node, "_saved_reduction", None) == _MEAN)


def _beyond(way: _Way, trunk: _Way) -> _Way:
    """The part of ``way`` that comes after ``trunk``."""
    multipliers, divisors = way.multipliers[len(trunk.multipliers) :], way.divisors[len(trunk.divisors) :]
    return _Way(way.node, way.output, multipliers, divisors, reduction=way.reduction)


def _scaled(way: _Way, most: int) -> _Way:
    """Down to the first node that is no multiple, no choice and no sum over elements of one other."""
    for _ in range(most):
        below = None if way.node is None else _below(way)
        if below is None:
            break
        way = below
    return way


def _below(way: _Way) -> _Way | None:
    """One step down; None where the node is none that scales."""
    operation, edges = operation_of(way.node), way.node.next_functions
    if operation == SINK:
        return way.to(edges[way.output]) if way.output < len(edges) else None
    leading = [edge for edge in edges if edge[0] is not None]
    if len(leading) != 1:
        return None
    (edge,) = leading
    if _SAME_VALUE.fullmatch(operation) or _LINEAR.fullmatch(operation) or operation == "Add":
        # a mean of stacked losses is a sum of several: `_branches` takes it apart
        return None if operation == "Mean" and operation_of(edge[0]) == "Stack" else way.to(edge)
    if operation == "Neg":
        return way.to(edge, multiplier=-1.0)
    if operation == "Sub":
        return way.to(edge, multiplier=1.0 if edges[0][0] is not None else -float(way.node._saved_alpha))
    if operation == "Mul":
        multiplier = _number(_operand(way.node))
        is_weighted = multiplier is None and operation_of(edge[0]) == "Stack"
        if is_weighted:
            return None
        weighing = saved_tensor(way.node, "other" if edges[0][0] is not None else "self")
        below = way.to(edge, multiplier=multiplier)
        return (
            below if multiplier is not None or weighing is None else replace(below, weighing=(*way.weighing, weighing))
        )
    if operation == "Div" and edges[0][0] is not None:
        return way.to(edge, divisor=_number(way.node._saved_other))
    return None


def _branches(way: _Way) -> list[_Way]:
    """The ways on from a sum of several parts that need a gradient; none where the node is no such sum."""
    if way.node is None:
        return []
    operation, edges = operation_of(way.node), way.node.next_functions
    if operation == "Mean" and len(edges) == 1 and edges[0][0] is not None and operation_of(edges[0][0]) == "Stack":
        parts = edges[0][0].next_functions
        return [way.to(edge, divisor=float(len(parts))) for edge in parts if edge[0] is not None]
    if operation == "Stack":
        return [way.to(edge) for edge in edges if edge[0] is not None]
    if operation not in ("Add", "Sub") or any(edge[0] is None for edge in edges):
        return []
    alpha = float(way.node._saved_alpha) * (1 if operation == "Add" else -1)
    ways = [way.to(edges[0]), way.to(edges[1], multiplier=alpha)]
    # A sum of numbers is one of losses; of single samples or tokens it may as well be the end of a model.
    if _numel(way.node) == 1 or any(_summand(_scaled(part, MAX_NODES)).function for part in ways):
        return ways
    return []


def _summand(way: _Way) -> Summand:
    operation = "" if way.node is None else operation_of(way.node)
    function = next((words for begins, words in _NAMES if operation.startswith(begins)), "")
    if not function and "CrossEntropy" in operation:
        function = "cross-entropy"
    return Summand(function, way.multipliers, way.divisors, way.averages, way.node, way.reduction, way.weighing)


def _operand(node: Any) -> Tensor | float | None:
    """What a product multiplies by that needs no gradient; a number where torch itself divides by one, as behind a
    cross-entropy with probabilities as its target.
    """
    return node._saved_other if node.next_functions[0][0] is not None else node._saved_self


def _number(operand: Tensor | float | None) -> Scalar | None:
    """A factor of one element: on the host its value, else the tensor; None of weights of single elements."""
    if isinstance(operand, (int, float)):
        return float(operand)
    if operand is None or operand.numel() != 1:
        return None
    operand = local(operand.detach())
    return float(operand) if operand.device.type == "cpu" else operand.to(torch.float64).reshape(())


def _num_reduced(node: Any) -> int:
    """Elements that a mean or a sum is taken of."""
    return math.prod(getattr(node, "_saved_self_sym_sizes", ()))


def _numel(node: Any) -> int:
    metadata = getattr(node, "_input_metadata", ())
    return int(torch.Size(metadata[0].shape).numel()) if metadata else 0


def _is_one(number: Scalar) -> bool:
    return isinstance(number, float) and number == 1.0
