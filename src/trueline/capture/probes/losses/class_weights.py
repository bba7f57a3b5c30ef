"""The weights that a loss gives classes, and how many targets have each class.

Given as ``weight`` or ``pos_weight``, or as a factor of each sample. Letters: N targets, C classes or outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trueline.capture.model.graph import is_hooked
from trueline.capture.probes.losses.cross_entropy import ignored_index, operation_of
from trueline.capture.probes.losses.saved import saved_tensor
from trueline.capture.probes.losses.summands import MAX_CLASSES, Summand
from trueline.schema.columns.loss_values import BY_CLASS, BY_POSITIVE

_BINARY = ("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits")


def class_weights(part: Summand) -> Tensor | None:
    """float64 [4 + 2 C], ``ClassWeights`` of a cross-entropy of torch whose classes have weights; None of any other."""
    operation = operation_of(part.node) if part.node is not None else ""
    if operation.startswith("NllLoss"):
        return _of_classes(part)
    if operation in _BINARY:
        return _of_positives(part) if _keeps(part, "pos_weight") else _of_two(part)
    return None


def _of_classes(part: Summand) -> Tensor | None:
    node = part.node
    target, weight = saved_tensor(node, "target"), saved_tensor(node, "weight")
    if target is None or not target.numel():
        return None
    units = float(len(target)) if target.dim() > 1 else float(target.numel())
    counts_N = (target != ignored_index(node)).flatten()
    labels_N = target.flatten().where(counts_N, 0)
    if weight is not None and not part.weighing:
        if weight.numel() > MAX_CLASSES:
            return None
        of_class = weight.new_zeros(weight.numel(), dtype=torch.float64)
        of_class.scatter_add_(0, labels_N, counts_N.double())
        return _row(BY_CLASS, weight.double().flatten(), of_class, units, weight.new_zeros((), dtype=torch.float64))
    factor, num_classes = _factor(part, target), _num_classes(part)
    if factor is None or weight is not None or num_classes is None:
        return None
    return _by_label(labels_N, counts_N, factor, num_classes, units)


def _of_two(part: Summand) -> Tensor | None:
    """Of a binary cross-entropy with a weight for each target, the classes 0 and 1."""
    target, weight = saved_tensor(part.node, "target"), saved_tensor(part.node, "weight")
    if target is None or not target.numel():
        return None
    factor = _factor(part, target) if weight is None else weight
    if factor is None or factor.numel() != target.numel() or (weight is not None and part.weighing):
        return None
    labels_N = (target > 0.5).long().flatten()
    return _by_label(labels_N, torch.ones_like(labels_N, dtype=torch.bool), factor, 2, float(len(target)))


def _of_positives(part: Summand) -> Tensor | None:
    target, weight = saved_tensor(part.node, "target"), saved_tensor(part.node, "pos_weight")
    if target is None or weight is None or not target.numel() or part.weighing:
        return None
    num_outputs = weight.numel()
    if num_outputs > MAX_CLASSES or (num_outputs > 1 and (target.dim() < 2 or target.shape[-1] != num_outputs)):
        return None
    positive_NC = (target > 0.5).double().reshape(-1, num_outputs)
    units = float(len(target))
    row = _row(BY_POSITIVE, weight.double().flatten(), positive_NC.sum(0), units, positive_NC.new_zeros(()))
    row[3] = len(positive_NC)
    return row


def _by_label(labels_N: Tensor, counts_N: Tensor, factor: Tensor, num_classes: int, units: float) -> Tensor:
    factor_N = factor.double().flatten()
    of_class = factor_N.new_zeros(num_classes).scatter_add_(0, labels_N, counts_N.double())
    sums = factor_N.new_zeros(num_classes).scatter_add_(0, labels_N, factor_N.where(counts_N, 0.0))
    means = sums / of_class  # NaN of a class without a target
    spread = (factor_N - means[labels_N]).abs().where(counts_N, 0.0).amax()
    return _row(BY_CLASS, means, of_class, units, spread)


def _factor(part: Summand, target: Tensor) -> Tensor | None:
    """The only factor of each target."""
    if len(part.weighing) != 1 or part.weighing[0].numel() != target.numel():
        return None
    return part.weighing[0]


def _keeps(part: Summand, name: str) -> bool:
    raw = getattr(part.node, f"_raw_saved_{name}", None)
    return raw is not None and (is_hooked(raw) or getattr(part.node, f"_saved_{name}") is not None)


def _num_classes(part: Summand) -> int | None:
    """Of the log-probabilities [N, C, ...]; None of too many, or where hooks keep them."""
    log_probs = saved_tensor(part.node, "self")
    if log_probs is None or log_probs.dim() < 2 or log_probs.shape[1] > MAX_CLASSES:
        return None
    return int(log_probs.shape[1])


def _row(kind: int, weights: Tensor, counts: Tensor, units: float, spread: Tensor) -> Tensor:
    head = [torch.full_like(spread, float(kind)), spread, torch.full_like(spread, units), counts.sum()]
    return torch.cat([torch.stack(head), weights, counts])
