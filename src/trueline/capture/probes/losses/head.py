"""The layer that returns the logits of a cross-entropy, and the labels that it is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trueline.capture.probes.losses.cross_entropy import ignored_index, operation_of
from trueline.capture.probes.losses.loss_inputs import layer_of
from trueline.capture.probes.losses.saved import saved_tensor

FEWEST = 65
"""Outputs from which on a layer is looked at."""
UNKNOWN = -1
"""Stands for the index of a parameter that the layout does not have."""


def labels_of(node: Any, index_of: Mapping[int, int]) -> Tensor | None:
    """Of the node of a cross-entropy whose logits [N, C, ...] a layer with C outputs returns, int64 [5]: C, the index
    of the layer's weight by ``index_of`` of identities, the targets that count, how many different labels these have,
    and the highest; None of any other, and of fewer than ``FEWEST`` outputs.
    """
    edges = node.next_functions
    if not operation_of(node).startswith("NllLoss") or not edges or edges[0][0] is None:
        return None
    num_classes, weights = layer_of(edges)
    if num_classes < FEWEST:
        return None
    target = saved_tensor(node, "target")
    if target is None or not target.numel():
        return None
    target = target.flatten()
    weight = next((index_of[id(x)] for x in weights if x.dim() > 1 and id(x) in index_of), UNKNOWN)
    counts = target != ignored_index(node)
    labels_C = torch.zeros(num_classes, dtype=torch.int64, device=target.device)
    labels_C.scatter_reduce_(0, target.where(counts, 0), counts.long(), "amax")
    row = torch.stack([counts.sum(), labels_C.sum(), target.where(counts, -1).amax()])
    return torch.cat([row.new_full((1,), num_classes), row.new_full((1,), weight), row])
