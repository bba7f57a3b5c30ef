"""Where the elements of a rectangular shard lie in the whole tensor, counted in row-major order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trueline.tensor.weights import MAX_WORDS


class ShardRuns:
    """A shard as runs of elements that follow each other in the whole, in the order in which the shard has them.

    ``num_runs`` of ``run_length`` elements each; ``first`` is the place of the shard's first element. A complex element
    counts as two here. Raises ValueError where the shard does not lie within the whole.
    """

    def __init__(self, x_local: Tensor, whole_shape: Sequence[int], offsets: Sequence[int]) -> None:
        shape, whole, at = list(x_local.shape), list(whole_shape), list(offsets)
        _check(shape, whole, at)
        if x_local.is_complex():
            shape, whole, at = [*shape, 2], [*whole, 2], [*at, 0]
        inner = len(shape)
        while inner and shape[inner - 1] == whole[inner - 1]:
            inner -= 1
        inner = max(inner - 1, 0)  # the first dim of a run may be cut itself
        strides = [math.prod(whole[dim + 1 :]) for dim in range(len(whole))]
        self.run_length = math.prod(shape[inner:])
        self.num_runs = math.prod(shape[:inner])
        self.first = sum(offset * stride for offset, stride in zip(at, strides, strict=True))
        self._outer = list(zip(shape[:inner], strides[:inner], strict=True))

    def starts(self, device: torch.device) -> Tensor:
        """int64 [num_runs] places of the first elements of the runs, on the device."""
        start = torch.full((), self.first, dtype=torch.int64, device=device)
        for size, stride in self._outer:
            start = start[..., None] + torch.arange(size, device=device) * stride
        return start.reshape(-1)


def _check(shape: list[int], whole: list[int], at: list[int]) -> None:
    if not len(shape) == len(whole) == len(at):
        raise ValueError(
            f"A shard of shape {shape} at {at} of a tensor of shape {whole}: all three must have one number of dims."
        )
    if any(offset < 0 or offset + size > full for size, full, offset in zip(shape, whole, at, strict=True)):
        raise ValueError(f"A shard of shape {shape} at {at} does not lie within a tensor of shape {whole}.")
    if math.prod(whole) > MAX_WORDS // 4:
        raise ValueError(f"A tensor of shape {whole} has more than {MAX_WORDS // 4:,} elements.")
