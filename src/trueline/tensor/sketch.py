"""Norm and linear sketch of a gradient in two passes over memory, without a copy of it.

Letters: W shards (1 for a whole tensor), C elements a shard, R rows of k elements a shard, k sketch length.

The sketch of x multiplies each row of k consecutive elements with one random sign and adds the rows up; the tail that
does not fill a row gets a sign of its own. It is linear in x, E[sketch(a)·sketch(b)] = a·b, and the standard error of
a cosine c from self-normalised sketches is (1 - c²)/√k, measured on real gradients (docs: The maths). k must be
prime: at k = 4,096 rows line up with weight rows and the error is 3 to 7 times larger.
"""

from __future__ import annotations

from typing import cast

import torch
import xxhash
from torch import Tensor

BLOCK_ROWS = 256
"""Rows that are added up in float32 before float64 takes over: a signed sum of 256 terms has a rounding error of about
2⁻²⁴·√128 of its norm, instead of 2⁻²⁴·√(R/2)."""

LOW_PRECISION_CHUNK = 4_194_304
"""Elements of a 16-bit tensor that are widened to float32 at one time (16 MiB of float32)."""

LENGTHS: tuple[int, ...] = (4099, 2053, 1031, 521)
"""Primes near the powers of two; the more groups, the shorter the sketch of each."""


def sketch_length(num_groups: int) -> int:
    """K for a model with ``num_groups`` groups, so that all sketches together stay near 8,192 numbers."""
    for length in LENGTHS:
        if length * num_groups <= 8300:
            return length
    return LENGTHS[-1]


class SignBank:
    """Random ±1 for the rows of every parameter, the same on all ranks, in one vector of float32.

    A parameter takes the slice that starts at a hash of its name, so that the memory is that of the largest parameter's
    rows and not of all of them. ``capacity`` is the largest number of signs that any parameter will ask for.
    """

    SEED = 0x7275_6C65

    def __init__(self, *, capacity: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(self.SEED)
        length = capacity + max(65_536, capacity)
        bits = torch.randint(0, 2, (length,), generator=generator, dtype=torch.int8)
        self._signs = (bits.to(torch.float32) * 2 - 1).to(device)
        self._room = length - capacity
        self.capacity = capacity

    def signs(self, name: str, count: int) -> Tensor:
        """[count] float32 of ±1 that belong to ``name``; raises ValueError beyond the capacity."""
        if count > self.capacity:
            raise ValueError(f"{count} signs asked for '{name}', the bank was built for {self.capacity}.")
        start = xxhash.xxh64_intdigest(name.encode()) % self._room
        return self._signs[start : start + count]


def signs_needed(numel: int, *, k: int, shards: int = 1) -> int:
    """How many signs a tensor of ``numel`` elements in ``shards`` equal shards takes: a row each, and one for each
    tail.
    """
    per_shard = -(-numel // shards)
    return shards * (per_shard // k + 1)


def measure(x: Tensor, signs: Tensor, *, k: int, offset: int = 0, shards: int = 1) -> tuple[Tensor, Tensor]:
    """(‖x‖² as float64 [], sketch of x as float64 [k]) of a floating tensor, on its device, without synchronising.

    ``x`` is read in logical order, flat; with ``shards`` W > 1 it must be [W, C], and W sketches of the shards add up
    to this one. ``signs`` is [W * (C // k + 1)] float32; ``offset`` rotates the sketch, so that the tails of many
    small parameters do not fall on the same cells. ‖x‖² is taken row by row in float32 and added in float64 (relative
    error about 1e-8; a flat float32 norm over 9M elements is wrong by 1e-3). A row whose square sum exceeds float32
    (norm 1.8e19) gives inf.
    """
    x_WC = x if shards > 1 else x.reshape(1, -1)
    width = x_WC.shape[1]
    signs_WR = signs[: shards * (width // k + 1)].view(shards, width // k + 1)
    norm2 = torch.zeros((), dtype=torch.float64, device=x.device)
    total_k = torch.zeros(k, dtype=torch.float64, device=x.device)
    step = width if x.dtype in (torch.float32, torch.float64) else max(LOW_PRECISION_CHUNK // k, 1) * k
    for start in range(0, width, max(step, 1)):
        part_WC = x_WC[:, start : start + step]
        if part_WC.dtype not in (torch.float32, torch.float64):
            part_WC = part_WC.float()
        norm2, total_k = _add_part(part_WC, signs_WR[:, start // k :], norm2, total_k, k=k)
    return norm2, torch.roll(total_k, offset % k) if offset % k else total_k


def _add_part(x_WC: Tensor, signs_WR: Tensor, norm2: Tensor, total_k: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    rows = x_WC.shape[1] // k
    if rows:
        body_WRk = x_WC[:, : rows * k].view(-1, rows, k)
        norm2 = norm2 + _square_sum(body_WRk)
        total_k = total_k + _signed_rows(body_WRk, signs_WR[:, :rows].to(x_WC.dtype))
    tail_WC = x_WC[:, rows * k :]
    if tail_WC.shape[1]:
        norm2 = norm2 + _square_sum(tail_WC)
        tail = (signs_WR[:, rows].to(x_WC.dtype) @ tail_WC).double()
        total_k = total_k.clone() if rows == 0 else total_k
        total_k[: tail.shape[0]] += tail
    return norm2, total_k


def _square_sum(x: Tensor) -> Tensor:
    """Σ x² as float64 []; the last dim is summed in the tensor's dtype, the others in float64."""
    norms = cast(Tensor, torch.linalg.vector_norm(x, dim=-1))  # pyright: ignore[reportUnknownMemberType]: no stubs
    return norms.double().square().sum()


def _signed_rows(body_WRk: Tensor, signs_WR: Tensor) -> Tensor:
    """Σ over shards and rows of sign × row, float64 [k]; blocks of rows in the tensor's dtype, across blocks in
    float64.
    """
    rows, k = body_WRk.shape[1:]
    blocks = rows // BLOCK_ROWS
    total_k = torch.zeros(k, dtype=torch.float64, device=body_WRk.device)
    if blocks:
        covered = blocks * BLOCK_ROWS
        for body_Rk, signs_R in zip(body_WRk, signs_WR, strict=True):
            blocks_BRk = body_Rk[:covered].view(blocks, BLOCK_ROWS, k)
            signs_B1R = signs_R[:covered].reshape(blocks, 1, BLOCK_ROWS)
            total_k += torch.bmm(signs_B1R, blocks_BRk).double().sum(dim=(0, 1))
        body_WRk, signs_WR = body_WRk[:, covered:], signs_WR[:, covered:]
    if rows % BLOCK_ROWS:
        total_k += torch.bmm(signs_WR.unsqueeze(1), body_WRk).double().sum(dim=(0, 1))
    return total_k
