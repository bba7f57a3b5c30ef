"""Digests: equal content gives equal numbers, one flipped bit or a permutation other ones.

All digests are 64 bits held in int64 tensors or Python ints. Different contents collide with probability about 2⁻⁶⁴ a
pair (they are hashes, not proofs), which is stated wherever a Finding rests on them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from trueline.tensor.memory import bits_of

_torch: Any = torch
_numpy: Any = np
"""With the parts that have no types."""

_K1 = -7046029254386353131  # 2⁶⁴/φ rounded to odd, as int64: Knuth's multiplicative hash (TAOCP 3, 6.4)
_K2 = -4417276706812531889  # an odd constant of xxHash64 (PRIME64_2, as int64), as second lane
_SHIFT = 29
_CHUNK = 4_194_304
_BYTES_PER_ROW = 8_192
_FEW = 16_384
"""Numbers in host memory for which NumPy is faster than torch: of so few the calls are most of the time."""

_BYTE = np.dtype(np.uint8)

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest_tensor(x: Tensor) -> Tensor:
    """int64 [] digest of a tensor's bits in logical order, on its device, without synchronising.

    Two kinds of digest exist: xxh3 over the bytes where the bytes are in host memory (0.06 ms a million float32), a
    position-weighted integer hash elsewhere. They differ, so compare digests of one device type only.
    """
    x = x.detach()
    if x.device.type == "cpu":
        return torch.tensor(_of_bytes(x), dtype=torch.int64)
    return _by_position(x.reshape(1, -1))[0]


def digest_each(tensors: Sequence[Tensor | None], device: torch.device) -> Tensor:
    """int64 [N] digests of N tensors (``digest_tensor``) on ``device``, 0 where there is none."""
    if all(x is None or x.device.type == "cpu" for x in tensors):
        return torch.tensor([0 if x is None else _of_bytes(x.detach()) for x in tensors], dtype=torch.int64).to(device)
    no_digest = torch.zeros((), dtype=torch.int64, device=device)
    return torch.stack([no_digest if x is None else digest_tensor(x).to(device) for x in tensors])


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
        return torch.tensor([_of_bytes(row) for row in x_BX], dtype=torch.int64)
    if keep_BT is not None:
        position_BL = keep_BT.to(torch.int64).cumsum(dim=1)
        mixed_BL = _mix(_as_int64(x_BX) * _K1 + position_BL * _K2)
        return _mix(torch.where(keep_BT, mixed_BL, 0).sum(dim=1))
    if x_BX.dim() == 2 and not x_BX.dtype.is_floating_point and not x_BX.dtype.is_complex:
        bits_BT = _as_int64(x_BX)
        if bits_BT.is_cpu and bits_BT.numel() <= _FEW:
            with contextlib.suppress(RuntimeError, TypeError):  # of a fake one, or one of functorch
                return _without_trailing_run_on_host(bits_BT.clone().numpy())
        return _without_trailing_run(bits_BT)
    return _by_position(x_BX.reshape(rows, -1))


def digest_of_zeros(x_BX: Tensor) -> int:
    """What ``digest_rows`` returns, without a mask, for a row of ``x_BX`` whose elements are all zero; computed on the
    host, also of a tensor elsewhere.
    """
    zeros_1X = torch.zeros((1, *x_BX.shape[1:]), dtype=x_BX.dtype)
    if x_BX.device.type == "cpu":
        return int(digest_rows(zeros_1X))
    if x_BX.dim() == 2 and not x_BX.dtype.is_floating_point and not x_BX.dtype.is_complex:
        return int(_without_trailing_run(_as_int64(zeros_1X)))
    return int(_by_position(zeros_1X.reshape(1, -1)))


def combine(first_B: Tensor, second_B: Tensor) -> Tensor:
    """int64 [B] digest of the ordered pair."""
    return _mix(first_B * _K1 + second_B)


def unsigned(value: int) -> int:
    """The uint64 by which a Run stores an int64 digest."""
    return value & 0xFFFF_FFFF_FFFF_FFFF


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def digest_of_memory(x: Tensor) -> int:
    """uint64 digest of the bits of a plain tensor in host memory, in logical order, whatever its shape. What does not
    lie in memory row by row is copied.
    """
    if not x.is_contiguous() or x.is_neg() or (x.is_complex() and x.is_conj()):
        x = x.detach().resolve_conj().resolve_neg().contiguous()
    size = x.numel() * x.element_size()
    # NumPy's way to the same memory takes as long as hashing 100,000 bytes
    return xxhash.xxh3_64_intdigest(_memory_of(size).from_address(x.data_ptr())) if size else 0


@functools.lru_cache(maxsize=4096)
def _memory_of(size: int) -> Any:
    return ctypes.c_char * size


def _of_bytes(x: Tensor) -> int:
    dense = x.resolve_conj().resolve_neg().contiguous()
    content = bits_of(dense, _BYTE).data if dense.numel() else b""
    return _signed(xxhash.xxh3_64_intdigest(content))


def _as_int64(x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        x = torch.view_as_real(x).flatten(1)
    if x.dtype == torch.bool:
        return x.to(torch.int64)
    return x.contiguous().view(_BITS[x.element_size()]).to(torch.int64)


def _by_position(x_BL: Tensor) -> Tensor:
    """int64 [B] hash of every element with its position, in pieces that take 128 MiB at most, whatever the length."""
    if x_BL.dtype.is_complex:
        x_BL = torch.view_as_real(x_BL).flatten(1)
    total_B = torch.zeros(len(x_BL), dtype=torch.int64, device=x_BL.device)
    start = 1
    for part_BL in torch.split(x_BL, max(_CHUNK // len(x_BL), 1), dim=1):
        position_L = torch.arange(start, start := start + part_BL.shape[1], device=x_BL.device)
        total_B += _mix((_as_int64(part_BL) * _K1).add_(position_L.mul_(_K2))).sum(dim=1)
    return _mix(total_B)


def _mix(x: Tensor) -> Tensor:
    """Mixes in place, and returns, ``x`` of int64."""
    x = x.bitwise_xor_(x >> _SHIFT).mul_(_K2)
    return x.bitwise_xor_(x >> _SHIFT).mul_(_K1)


def _without_trailing_run(bits_BT: Tensor) -> Tensor:
    """int64 [B] hash of rows of which a run of one value at the end counts as one."""
    position_T = torch.arange(1, 1 + bits_BT.shape[1], device=bits_BT.device)
    different_BT = bits_BT != bits_BT[:, -1:]
    last_B1 = (different_BT * position_T).amax(dim=1, keepdim=True)
    mixed_BT = _mix(bits_BT * _K1 + position_T * _K2)
    return _mix(torch.where(position_T <= last_B1 + 1, mixed_BT, 0).sum(dim=1))


def _without_trailing_run_on_host(bits_BT: Any) -> Tensor:
    """The same numbers by NumPy, of int64 [B, T]."""
    position_T: Any = _numpy.arange(1, 1 + bits_BT.shape[1])
    different_BT: Any = bits_BT != bits_BT[:, -1:]
    last_B1: Any = (different_BT * position_T).max(axis=1, keepdims=True)
    mixed_BT: Any = _mix_on_host(bits_BT * _K1 + position_T * _K2)
    is_kept_BT: Any = position_T <= last_B1 + 1
    total_B: Any = (mixed_BT * is_kept_BT).sum(axis=1)
    return _torch.from_numpy(_mix_on_host(total_B))


def _mix_on_host(x: Any) -> Any:
    """Mixes in place, and returns, ``x`` of int64."""
    x ^= x >> _SHIFT
    x *= _K2
    x ^= x >> _SHIFT
    x *= _K1
    return x
