"""Digests: equal content gives equal numbers, one flipped bit or a permutation other ones.

All digests are 64 bits held in int64 tensors or Python ints. Different contents collide with probability about 2⁻⁶⁴ a
pair (they are hashes, not proofs), which is stated wherever a Finding rests on them.
"""

from __future__ import annotations

import torch
import xxhash
from torch import Tensor

_K1 = -7046029254386353131  # 2⁶⁴/φ rounded to odd, as int64: Knuth's multiplicative hash (TAOCP 3, 6.4)
_K2 = -4417276706812531889  # an odd constant of xxHash64 (PRIME64_2, as int64), as second lane
_SHIFT = 29
_CHUNK = 4_194_304
_BYTES_PER_ROW = 8_192

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest_tensor(x: Tensor) -> Tensor:
    """int64 [] digest of a tensor's bits in logical order, on its device, without synchronising.

    Two kinds of digest exist: xxh3 over the bytes where the bytes are in host memory (0.06 ms a million float32), a
    position-weighted integer hash elsewhere. They differ, so compare digests of one device type only.
    """
    x = x.detach()
    if x.device.type == "cpu":
        return torch.tensor(_signed(xxhash.xxh3_64_intdigest(_bytes(x))), dtype=torch.int64)
    return digest_rows(x.reshape(1, -1))[0] if x.numel() else torch.zeros((), dtype=torch.int64, device=x.device)


def digest_rows(x_BX: Tensor, keep_BT: Tensor | None = None) -> Tensor:
    """int64 [B] digest of each row of ``x_BX`` ([B, ...], any dtype), on its device, without synchronising.

    ``keep_BT`` (bool [B, T], for a tensor [B, T]) marks what counts: the digest depends on the kept values in order
    and on nothing else, so that one sample padded to different lengths, left or right, keeps its digest. Without it,
    a trailing run of one repeated integer counts once, which has the same effect for right padding; rows of one
    length stay distinct.
    """
    rows = x_BX.shape[0]
    x_BX = x_BX.detach()
    if rows == 0 or x_BX.numel() == 0:
        return torch.zeros(rows, dtype=torch.int64, device=x_BX.device)
    if keep_BT is None and x_BX.device.type == "cpu" and x_BX[0].numel() * x_BX.element_size() > _BYTES_PER_ROW:
        return torch.tensor([_signed(xxhash.xxh3_64_intdigest(_bytes(row))) for row in x_BX], dtype=torch.int64)
    bits_BL = _as_int64(x_BX.reshape(rows, -1))
    if keep_BT is None and x_BX.dim() == 2 and not x_BX.dtype.is_floating_point and not x_BX.dtype.is_complex:
        keep_BT = _without_trailing_run(x_BX)
    total_B = torch.zeros(rows, dtype=torch.int64, device=x_BX.device)
    width = max(_CHUNK // rows, 1)
    if keep_BT is not None:
        position_BL = keep_BT.to(torch.int64).cumsum(dim=1)
        return _mix(torch.where(keep_BT, _mix(bits_BL * _K1 + position_BL * _K2), 0).sum(dim=1))
    for start in range(0, bits_BL.shape[1], width):
        part_BL = bits_BL[:, start : start + width]
        position_L = torch.arange(start + 1, start + 1 + part_BL.shape[1], device=x_BX.device)
        total_B = total_B + _mix(part_BL * _K1 + position_L * _K2).sum(dim=1)
    return _mix(total_B)


def combine(first_B: Tensor, second_B: Tensor) -> Tensor:
    """int64 [B] digest of the ordered pair."""
    return _mix(first_B * _K1 + second_B)


def unsigned(value: int) -> int:
    """The uint64 that an int64 digest stands for in a Run."""
    return value & 0xFFFF_FFFF_FFFF_FFFF


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _bytes(x: Tensor) -> memoryview:
    flat = x.contiguous().view(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.view(torch.uint8).numpy().data


def _as_int64(x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        x = torch.view_as_real(x).flatten(1)
    if x.dtype == torch.bool:
        return x.to(torch.int64)
    return x.contiguous().view(_BITS[x.element_size()]).to(torch.int64)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ (x >> _SHIFT)) * _K2
    return (x ^ (x >> _SHIFT)) * _K1


def _without_trailing_run(x_BT: Tensor) -> Tensor:
    same_BT = x_BT == x_BT[:, -1:]
    run_BT = same_BT.flip(1).to(torch.uint8).cumprod(dim=1).flip(1).bool()
    keep_BT = ~run_BT
    first = run_BT & torch.cat([torch.ones_like(keep_BT[:, :1]), keep_BT[:, :-1]], dim=1)
    return keep_BT | first
