"""How a tensor lies in memory: read it densely where possible, else in blocks that fit a scratch buffer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def in_memory_order(x: Tensor) -> tuple[Tensor, int]:
    """A view with the same values in whatever order reads memory best, and how often each of them counts.

    Expanded dims (stride 0) are taken once; a permuted dense tensor comes back flat. What has gaps keeps its shape.
    """
    times = 1
    if not x.is_contiguous():
        for dim in reversed(range(x.dim())):
            if x.stride(dim) == 0 and x.shape[dim] > 1:
                times *= x.shape[dim]
                x = x.select(dim, 0)
        x = x.permute(sorted(range(x.dim()), key=x.stride, reverse=True))
    return (x.view(-1), times) if x.is_contiguous() else (x, times)


def blocks(x: Tensor, limit: int) -> Iterator[Tensor]:
    """Views of at most ``limit`` elements that follow each other in row-major order and cover ``x``."""
    if x.numel() <= limit:
        yield x
        return
    per_row = x.numel() // x.shape[0]
    if per_row > limit:
        for row in x.unbind(0):
            yield from blocks(row, limit)
    else:
        yield from torch.split(x, limit // per_row)
