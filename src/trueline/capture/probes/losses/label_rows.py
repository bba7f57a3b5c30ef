"""Digest what the loss compares each sample with, as its graph keeps it; count labels that are a class and ignored.

Letters: B samples, T positions of the input, X elements of a label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trueline.capture.model.graph import shape_of
from trueline.capture.probes.losses.cross_entropy import ignored_index, operation_of
from trueline.capture.probes.losses.loss_inputs import functions_of
from trueline.capture.probes.losses.saved import saved_tensor
from trueline.schema.columns.label_digests import KIND_BITS
from trueline.tensor.digest import digest_rows

UNKNOWN = 0
"""Stands for the label of a sample none of whose elements counts."""
MAX_ELEMENTS = 4096
"""Elements of a label that are looked at, at equal distances: of a mask of pixels."""
_COMPARES = ("NllLoss", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy")
"""Beginnings of the names of operations that keep what they compare with."""


class LabelRows(NamedTuple):
    """int64 [B] digests of labels, the number of classes that they are of (0: none), and where the loss ignores one of
    these int64 [5], ``IgnoredClass`` but for the last.
    """

    digests: Tensor
    classes: int
    ignored: Tensor | None


def label_rows(roots: Sequence[Tensor], shape: Sequence[int]) -> LabelRows | None:
    """Labels of the only function below a loss that has some; None where there are several, or they are no rows of the
    samples: of the first input of the model, of ``shape`` [B, T, ...].
    """
    nodes = [root.grad_fn for root in roots]
    if len(nodes) != 1 or not operation_of(nodes[0]).startswith(_COMPARES):
        nodes = [node for node, operation, _ in functions_of(roots) if operation.startswith(_COMPARES)]
    if len(nodes) != 1 or not shape:
        return None
    target = saved_tensor(nodes[0], "target")
    # what needs a gradient is no label
    if target is None or sum(edge[0] is not None for edge in nodes[0].next_functions) != 1:
        return None
    label_BX = _by_sample(target, shape)
    return None if label_BX is None else _read(label_BX, nodes[0])


def _by_sample(target: Tensor, shape: Sequence[int]) -> Tensor | None:
    """``target`` [B, X] where it has a row for each sample, or one number for each position, or for each but one."""
    rows = shape[0]
    if not target.numel() or not rows:
        return None
    if target.shape[0] == rows:
        label_BX = target.reshape(rows, -1)
        return label_BX[:, :: -(-label_BX.shape[1] // MAX_ELEMENTS)]
    places = shape[1] if len(shape) > 1 else 0
    if target.dim() == 1 and target.numel() in (rows * places, rows * (places - 1)):
        return target.view(rows, -1)[:, :MAX_ELEMENTS]
    return None


def _read(label_BX: Tensor, node: Any) -> LabelRows:
    if not hasattr(node, "_saved_ignore_index"):
        return LabelRows(_of_kind(digest_rows(label_BX), 0), 0, None)
    ignored = ignored_index(node)
    counts_BX = label_BX != ignored
    shape = shape_of(node.next_functions[0][0])
    classes = int(shape[1]) if len(shape) > 1 else 0
    digests_B = torch.where(counts_BX.any(1), _of_kind(digest_rows(label_BX, counts_BX), classes), UNKNOWN)
    return LabelRows(digests_B, classes, _ignored(counts_BX, ignored, classes) if 0 <= ignored < classes else None)


def _ignored(counts_BX: Tensor, ignored: int, classes: int) -> Tensor:
    """Of labels of one element all that are ignored, of longer ones those between two that count: padding is none."""
    leaves_out_BX = ~counts_BX
    if counts_BX.shape[1] > 1:
        numbers_BX = counts_BX.long()
        before_BX = numbers_BX.cumsum(1) > 0
        after_BX = numbers_BX.flip(1).cumsum(1).flip(1) > 0
        leaves_out_BX = leaves_out_BX & before_BX & after_BX
    number = leaves_out_BX.sum()
    head = [number.new_full((), of_host) for of_host in (ignored, classes, counts_BX.shape[1])]
    return torch.stack([*head, number, counts_BX.sum()])


def _of_kind(digests_B: Tensor, kind: int) -> Tensor:
    """Other classes are another question about a sample."""
    kinds = 1 << KIND_BITS
    return digests_B.bitwise_and_(-kinds).bitwise_or_(kind % kinds)
