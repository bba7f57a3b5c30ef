"""Ratios of new to old probabilities in a loss: exponentials of differences and what is clamped around 1; and the
log-ratios that a preference loss takes the sigmoid of. Read from the graph before backward uses it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from trueline.capture.probes.losses.cross_entropy import SINK, operation_of
from trueline.capture.probes.losses.saved import saved_tensor
from trueline.schema.columns.loss_values import CLAMPED, EXPONENTIAL, LOG_SIGMOID

MAX_NODES = 96
"""Operations of a loss that are looked at."""
MAX_RATIOS = 8
"""Of a loss, the first ones."""
MAX_LOOKED_THROUGH = 16
"""Operations between an exponential and the difference that it is of."""

_MODEL = (
    *("Addmm", "Mm", "Bmm", "Baddbmm", "Convolution", "MkldnnLinear", "Linear", "LogSoftmax", "Softmax", "Embedding"),
    *("NllLoss", "NllLoss2d", "MseLoss", "SmoothL1Loss", "HuberLoss", "Gather", "CompiledFunction"),
)
"""Operations at which a model ends: what is below them is no ratio."""
_SUMS = ("Sum", "Mean", "Mul", "Div", "Clamp", "Clone", "View", "Squeeze", "Unsqueeze", "Expand", "Slice", "Index")
"""Operations that are looked through between an exponential and the difference: those of a log-ratio of a sequence."""


def ratios_of(root: Tensor) -> Tensor | None:
    """int64 [R, 4], of each ratio what is at work, its elements, how many of them are exactly 1 (of a log-ratio 0), and
    how many are out of the range of the clamp; None without one.
    """
    ahead, visited, rows = deque([(root.grad_fn, root.output_nr)]), set[Any](), list[Tensor]()
    while ahead and len(visited) < MAX_NODES and len(rows) < MAX_RATIOS:
        node, output = ahead.popleft()
        if node is None or node in visited:
            continue
        visited.add(node)
        operation, edges = operation_of(node), node.next_functions
        if operation in _MODEL:
            continue
        if (row := _row(operation, node)) is not None:
            rows.append(row)
        ahead.extend(edges[output : output + 1] if operation == SINK else edges)
    return torch.stack(rows) if rows else None


def _row(operation: str, node: Any) -> Tensor | None:
    if operation == "Exp" and _is_of_difference(node):
        return _counted(EXPONENTIAL, saved_tensor(node, "result"), 1.0)
    if operation == "LogSigmoid" or (operation == "Softplus" and float(node._saved_threshold) > 0):
        return _counted(LOG_SIGMOID, saved_tensor(node, "self"), 0.0)
    if operation != "Clamp":
        return None
    ends = [_end(node, name) for name in ("min", "max")]
    least, most = ends
    x = saved_tensor(node, "self")
    if x is None or least is None or most is None:
        return None
    if isinstance(least, float) and isinstance(most, float) and not 0 <= least < 1 < most:
        return None
    return _counted(CLAMPED, x, 1.0, ((x < least) | (x > most)).sum())


def _counted(kind: int, x: Tensor | None, neutral: float, outside: Tensor | None = None) -> Tensor | None:
    if x is None or not x.numel():
        return None
    row = torch.zeros(4, dtype=torch.int64, device=x.device)
    row[0], row[1], row[2] = kind, x.numel(), (x == neutral).sum()
    if outside is not None:
        row[3] = outside
    return row


def _end(node: Any, name: str) -> float | Tensor | None:
    """An end of a clamp's range."""
    if (end := saved_tensor(node, name)) is not None:
        return end
    end = getattr(node, f"_saved_{name}", None)
    return float(end) if isinstance(end, (int, float)) else None


def _is_of_difference(node: Any) -> bool:
    for _ in range(MAX_LOOKED_THROUGH):
        below = [edge[0] for edge in node.next_functions if edge[0] is not None]
        operation = operation_of(below[0]) if len(below) == 1 else ""
        if operation == "Sub":
            return True
        if operation not in _SUMS:
            return False
        node = below[0]
    return False
