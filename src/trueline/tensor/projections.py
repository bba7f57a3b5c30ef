"""Three random projections of a tensor: sums of its numbers, each with a fixed sign by its place in the whole.

Letters: N numbers, P places of a page (``weights``), K projections.

Of two tensors that differ by e, the projections differ by Σ s(n)·e(n), whose mean square over random signs is |e|²: the
root mean square of three is |e| within a factor of 2 in nine of ten cases, whatever e is, where sums and extremes only
give a lower bound (Johnson and Lindenstrauss 1984; with signs: Achlioptas 2003). They also show the order of numbers,
which no other statistic does. Places are counted in row-major order of the *whole*, so that those of shards add up.

The place n has lane n mod 16 and row n div 16 mod 4 of chunk n div 64. The lane of a chunk draws a sign for each
projection, which row k turns around in projection k, and so do half of all pages: the kernel adds up a chunk before it
turns a sign (``kernel/projection.h``). Two numbers of one lane and chunk that change places are always seen, others but
in one case of eight.

What is not finite counts as zero, and so do masks: numbers near the largest of a float (``schema.formats.MASKS``),
beside which a sum shows nothing else.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trueline.schema.columns.records import PROJECTION_NAMES
from trueline.schema.formats import MASKS
from trueline.tensor.shard import ShardRuns
from trueline.tensor.strides import blocks
from trueline.tensor.weights import MASK, PAGE, PAGE_BITS, device_weights, host_weights

NUM_PROJECTIONS = len(PROJECTION_NAMES)

LANES = 16

ROWS = 4

MASKS_OF = {getattr(torch, name): size for name, size in MASKS.items()}
"""``MASKS`` by dtype: from there on numbers count as zero."""

_SLAB = 1 << 22
"""Numbers that are widened at once on a device."""


@cache
def signs_of_places() -> NDArray[np.float64]:
    """float64 [P, K] the sign of each place of a page."""
    place_P = np.arange(PAGE)
    draw_P = host_weights().word.view(np.uint64)[place_P // (ROWS * LANES) * LANES + place_P % LANES]
    row_P = place_P // LANES % ROWS
    columns = [
        np.where(draw_P >> np.uint64(31 - k) & np.uint64(1), -1.0, 1.0) * np.where(row_P == k, -1.0, 1.0)
        for k in range(NUM_PROJECTIONS)
    ]
    return np.ascontiguousarray(np.stack(columns, axis=1))


def projections_of(x: Tensor, shard: ShardRuns | None = None) -> NDArray[np.float64]:
    """float64 [K] of a tensor of real numbers in host memory, of which ``shard`` says what part of the whole it is."""
    if shard is None or shard.num_runs == 1:
        runs, starts = [x], [0 if shard is None else shard.first]
    else:
        runs, starts = x.reshape(shard.num_runs, -1).unbind(0), map(int, shard.starts(x.device).numpy())
    found_K = torch.zeros(NUM_PROJECTIONS, dtype=torch.float64)
    for run, start in zip(runs, starts, strict=True):
        for block in blocks(run, PAGE) if run.numel() else ():
            found_K += _in_pages(block.reshape(-1), start, torch.float64)
            start += block.numel()
    return found_K.numpy()


def projections_on_device(x: Tensor, shard: ShardRuns | None = None) -> Tensor:
    """The same on the device of ``x``, without synchronising; float32 on MPS, which has no float64.

    Temporaries take 8 bytes a number, at most 32 MB, a part in several runs five times as much. The first call on a
    device copies 1.5 MB of signs there.
    """
    wide = torch.float32 if x.device.type == "mps" else torch.float64
    if x.numel() == 0:
        return torch.zeros(NUM_PROJECTIONS, dtype=wide, device=x.device)
    if shard is None or shard.num_runs == 1:
        return _in_pages(x.reshape(-1), 0 if shard is None else shard.first, wide)
    run_length = x.numel() // shard.num_runs
    step_L = torch.arange(run_length, device=x.device)
    parts: list[Tensor] = []
    height = max(_SLAB // run_length, 1)
    runs_RL, start_R = x.reshape(shard.num_runs, -1), shard.starts(x.device)
    for some_RL, first_R in zip(torch.split(runs_RL, height), torch.split(start_R, height), strict=True):
        index_N = (first_R[:, None] + step_L).view(-1)
        signs_NK = _device_signs(x.device, wide)[index_N & MASK] * _page_signs(index_N >> PAGE_BITS, wide)
        parts.append(_finite(some_RL.reshape(-1), wide) @ signs_NK)
    return torch.stack(parts).sum(dim=0)


def _in_pages(x_N: Tensor, start: int, wide: torch.dtype) -> Tensor:
    """[K] of numbers that follow each other, the first being the ``start``-th of the whole."""
    signs_PK = _device_signs(x_N.device, wide)
    num = x_N.numel()
    ahead = min(-start % PAGE, num)
    whole = (num - ahead) // PAGE * PAGE
    parts: list[Tensor] = []
    for first, last in ((0, ahead), (ahead + whole, num)):
        if last > first:
            page, at = divmod(start + first, PAGE)
            page_1 = torch.full((1,), page, device=x_N.device)
            part_K = _finite(x_N[first:last], wide) @ signs_PK[at : at + last - first]
            parts.append(part_K * _page_signs(page_1, wide)[0])
    first_page = (start + ahead) // PAGE
    for slab_N in torch.split(x_N[ahead : ahead + whole], _SLAB) if whole else ():
        slab_CP = _finite(slab_N, wide).view(-1, PAGE)
        page_C = torch.arange(first_page, first_page + len(slab_CP), device=x_N.device)
        parts.append((slab_CP @ signs_PK * _page_signs(page_C, wide)).sum(dim=0))
        first_page += len(slab_CP)
    return torch.stack(parts).sum(dim=0)


def _finite(x_N: Tensor, wide: torch.dtype) -> Tensor:
    """The numbers, zero for those that count as such."""
    wide_N = x_N.to(wide)
    if not x_N.dtype.is_floating_point:
        return wide_N
    return torch.where(wide_N.abs() < MASKS_OF.get(x_N.dtype, math.inf), wide_N, 0.0)


@cache
def _device_signs(device: torch.device, wide: torch.dtype) -> Tensor:
    """[P, K] ``signs_of_places`` on the device."""
    return torch.as_tensor(signs_of_places()).to(wide).to(device)


def _page_signs(page_C: Tensor, wide: torch.dtype) -> Tensor:
    """[C, K] the signs of pages: the topmost bits of what fingerprints multiply them with."""
    weights = device_weights(page_C.device)
    turn_C = weights.page[page_C & MASK] * weights.book[page_C >> PAGE_BITS]
    return torch.stack([torch.where(turn_C << k < 0, -1.0, 1.0).to(wide) for k in range(NUM_PROJECTIONS)], dim=1)
