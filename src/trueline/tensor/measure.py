"""Statistics of one tensor: counts, finite extremes, sum, sum of squares and random projections.

Letters: S the statistics in the order of ``schema.records.STAT_NAMES``, E the 256 exponents, N elements.

Every dtype is measured as what it is worth. The compiled kernel does it in one pass over host memory (``native``);
without it float32 holds sums of 16-bit floats and float64 those of integers (beyond 2⁵³ they round). A complex number
counts as two, its real and its imaginary part. What is subnormal depends on the tensor's own dtype: 1e-5 is in float16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trueline.schema.stats import NUM_EXPONENTS
from trueline.tensor.fingerprint import HostFingerprint
from trueline.tensor.lanes import CHUNK, EMPTY, MEASURABLE, Lane, Scratch, Stats, lane_of, of_one
from trueline.tensor.memory import alias, is_functional, is_held, is_of_functorch
from trueline.tensor.native import NATIVE, Native
from trueline.tensor.projections import NUM_PROJECTIONS, projections_of, projections_on_device
from trueline.tensor.shard import ShardRuns
from trueline.tensor.strides import blocks, in_memory_order

_PLAIN = (Tensor, torch.nn.Parameter)

_READ_IN_PLACE = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Dtypes that NumPy measures without leaving a mark on their storage; others through an alias."""

_GATHERED = 4 * 2**20
"""Elements up to which a strided tensor is copied where NumPy takes both its statistics and its fingerprint: gathering
it costs more than reading it.
"""


def unmeasurable(x: Tensor) -> str | None:
    """Why ``x`` has no statistics, as a short clause; None where it has.

    Cheap, and reads no values. A subclass that has values of its own in other tensors (DTensor, nested, fake) is not
    measurable as such: hand over the tensor that it wraps.
    """
    if type(x) not in _PLAIN and _wraps(x):
        return f"a {type(x).__name__} has its values in other tensors"
    if x.is_nested:
        return "a nested tensor is not measured"
    if x.layout != torch.strided:
        return f"layout {str(x.layout).removeprefix('torch.')} is not measured"
    if x.device.type == "meta":
        return "a meta tensor has no values"
    if x.dtype not in MEASURABLE:
        return f"dtype {str(x.dtype).removeprefix('torch.')} is not measured"
    if is_of_functorch(x):
        return "a tensor of torch.func has its values in other tensors"
    if is_functional(x):
        return "a functional tensor has no values"
    if not is_held(x):
        return "its memory was freed"
    return None


def _wraps(x: Tensor) -> bool:
    """True if the subclass intercepts operators: then its own memory says nothing."""
    dispatch: Any = getattr(type(x), "__torch_dispatch__", None)
    return dispatch is not None and dispatch is not getattr(Tensor, "__torch_dispatch__", None)


def num_measured(x: Tensor) -> int:
    """How many numbers the statistics of ``x`` count: its elements, or twice as many where they are complex."""
    return 2 * x.numel() if x.is_complex() else x.numel()


class HostMeter:
    """Measures tensors in host memory, with the compiled kernel where there is one. One object per thread.

    It calls torch and NumPy: where a torch function or dispatch mode is on, turn it off around a call, or it sees them.
    """

    def __init__(self, native: Native | None = NATIVE) -> None:
        self._native = native

    @cached_property
    def _fingerprint(self) -> HostFingerprint:
        return HostFingerprint(self._native)

    @cached_property
    def _lanes(self) -> dict[torch.dtype, Lane]:
        scratch = Scratch()
        return {dtype: lane_of(dtype, scratch) for dtype in MEASURABLE}

    def stats_into(
        self,
        x: Tensor,
        out_S: NDArray[np.float64],
        *,
        whole_shape: Sequence[int] | None = None,
        offsets: Sequence[int] | None = None,
    ) -> None:
        """Write the statistics of a CPU tensor that is not ``unmeasurable`` to ``out_S`` (float64 [S]).

        NaN for the extremes where nothing is finite. ``x`` may be empty, strided, expanded, and require gradients, and
        a rectangular shard whose first element is at ``offsets`` of the whole; it is copied at most ``CHUNK`` elements
        at a time, but for one whose conjugation is still pending and one that is cut into several runs.
        """
        shard = None if whole_shape is None or offsets is None else ShardRuns(x, whole_shape, offsets)
        if self._native is None or not self._native.stats_into(x, out_S, shard):
            self._stats_by_numpy(x, out_S, shard)

    def all_into(
        self,
        x: Tensor,
        out_S: NDArray[np.float64],
        *,
        whole_shape: Sequence[int] | None = None,
        offsets: Sequence[int] | None = None,
    ) -> int:
        """Write the statistics and return the fingerprint, as ``HostFingerprint.of`` does; the kernel reads memory once
        for both.
        """
        if self._native is not None:
            shard = None if whole_shape is None or offsets is None else ShardRuns(x, whole_shape, offsets)
            fingerprint = self._native.all_into(x, out_S, shard)
            if fingerprint is not None:
                return fingerprint
        if x.numel() <= _GATHERED and not x.is_contiguous():
            x = x.detach().contiguous()
        self.stats_into(x, out_S, whole_shape=whole_shape, offsets=offsets)
        return self._fingerprint.of(x, whole_shape=whole_shape, offsets=offsets)

    def _stats_by_numpy(self, x: Tensor, out_S: NDArray[np.float64], shard: ShardRuns | None) -> None:
        x, dtype = x.detach(), x.dtype
        if dtype not in _READ_IN_PLACE:
            x = alias(x)
        lane = self._lanes[dtype]
        if dtype.is_complex:
            x = torch.view_as_real(x.resolve_conj())
        if dtype.is_floating_point and x.dim() == 0:
            out_S[:-NUM_PROJECTIONS] = of_one(x.item(), dtype)
        elif 0 < x.numel() <= CHUNK and x.is_contiguous() and not x.is_neg():
            out_S[:-NUM_PROJECTIONS] = lane.stats(x)
        else:
            out_S[:-NUM_PROJECTIONS] = _in_blocks(x.resolve_neg(), lane)
        out_S[-NUM_PROJECTIONS:] = projections_of(x.resolve_neg(), shard)


def _in_blocks(x: Tensor, lane: Lane) -> Stats:
    if x.numel() == 0:
        return EMPTY
    flat, times = (x.view(-1), 1) if x.is_contiguous() else in_memory_order(x)
    total = EMPTY
    for block in torch.split(flat, CHUNK) if flat.is_contiguous() else blocks(flat, CHUNK):
        part = lane.stats(block.contiguous())
        total = part if total is EMPTY else _add(total, part)
    return total if times == 1 else _repeat(total, times)


def _add(a: Stats, b: Stats) -> Stats:
    """Both together; an extreme of NaN says that nothing was finite, and compares False."""
    low = a[5] if a[5] <= b[5] or b[5] != b[5] else b[5]
    high = a[6] if a[6] >= b[6] or b[6] != b[6] else b[6]
    counts = (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3], a[4] + b[4])
    return (*counts, low, high, a[7] + b[7], a[8] + b[8])


def _repeat(stats: Stats, times: int) -> Stats:
    nan, pos_inf, neg_inf, zero, subnormal, low, high, total, square = stats
    counts = (nan * times, pos_inf * times, neg_inf * times, zero * times, subnormal * times)
    return (*counts, low, high, total * times, square * times)


def measure_on_device(x: Tensor, shard: ShardRuns | None = None) -> Tensor:
    """float64 [S] statistics on the device of ``x``, in the order of ``STAT_NAMES``, without synchronising.

    Float32 [S] on MPS, which has no float64: there counts above 2²⁴ are rounded. Temporaries are of the size of ``x``.
    ``shard`` says what part of the whole it is.
    """
    x = _real(x)
    wide = torch.float32 if x.device.type == "mps" else torch.float64
    projections_K = projections_on_device(x, shard)
    if x.numel() == 0:
        none_S = torch.zeros(len(EMPTY), dtype=wide, device=x.device)
        none_S[5:7].fill_(math.nan)
        return torch.cat([none_S, projections_K])
    x_N = x.reshape(-1).to(_width(x.dtype, wide))
    size_N = x_N.abs()
    finite_N = size_N < math.inf
    least = torch.finfo(x.dtype).smallest_normal if x.is_floating_point() else 0.0
    counts = [x_N != x_N, x_N == math.inf, x_N == -math.inf, x_N == 0, (size_N < least) & (x_N != 0)]
    kept_N = torch.where(finite_N, x_N, 0)
    low = torch.where(finite_N, x_N, math.inf).amin()
    high = torch.where(finite_N, x_N, -math.inf).amax()
    nothing_finite = low > high
    nine_S = torch.stack(
        [
            *(chosen_N.sum().to(wide) for chosen_N in counts),
            torch.where(nothing_finite, math.nan, low).to(wide),
            torch.where(nothing_finite, math.nan, high).to(wide),
            kept_N.sum(dtype=wide),
            kept_N.to(wide).square().sum(),
        ]
    )
    return torch.cat([nine_S, projections_K])


def exponents_of(x: Tensor, native: Native | None = NATIVE) -> Tensor:
    """int64 [256] on the device of ``x``: finite non-zero numbers by floor(log2|x|) + 127, clipped to 0 and 255.

    A histogram, from which quantiles of |x| and the share that another dtype could not hold follow. Subnormals of
    float32 and all smaller numbers share bucket 0, all from 2¹²⁸ on bucket 255.
    """
    if x.device.type != "cpu":
        return exponents_on_device(x)
    counts_E = torch.zeros(NUM_EXPONENTS, dtype=torch.int64)
    flat, times = in_memory_order(_real(x))
    for block in blocks(flat, CHUNK):
        if native is not None and native.add_exponents(block.contiguous(), counts_E.numpy()):
            continue
        wide_N = _wide(block)
        counts_E += torch.bincount(_buckets(wide_N), minlength=NUM_EXPONENTS)
        counts_E[[0, -1]] -= _elsewhere(wide_N)
    return counts_E * times


def exponents_on_device(x: Tensor) -> Tensor:
    """The same without synchronising, by sorting: counting in place would be atomic, or ask for the largest bucket."""
    wide_N = _wide(_real(x))
    bucket_N, _ = torch.sort(_buckets(wide_N))
    first = torch.searchsorted(bucket_N, torch.arange(NUM_EXPONENTS, device=x.device, dtype=torch.uint8))
    counts_E = torch.diff(first, append=torch.full_like(first[:1], wide_N.numel()))
    elsewhere = _elsewhere(wide_N)
    counts_E[0] -= elsewhere[0]
    counts_E[-1] -= elsewhere[1]
    return counts_E


def _wide(x: Tensor) -> Tensor:
    """[N] in float32 or float64, whichever holds all values of the dtype and is there."""
    return x.reshape(-1).to(_width(x.dtype, torch.float32 if x.device.type == "mps" else torch.float64))


def _buckets(x_N: Tensor) -> Tensor:
    """uint8 [N] bucket of each float32 or float64; that of a zero is 0, of what is not finite 255."""
    if x_N.dtype == torch.float32:
        return ((x_N.view(torch.int32) >> 23) & 0xFF).to(torch.uint8)  # its bias is that of our buckets
    return (((x_N.view(torch.int64) >> 52) & 0x7FF) - (1023 - 127)).clamp(0, 255).to(torch.uint8)


def _elsewhere(x_N: Tensor) -> Tensor:
    """int64 [2] zeros, and numbers that are not finite."""
    return torch.stack([(x_N == 0).sum(), (~(x_N.abs() < math.inf)).sum()])


def _real(x: Tensor) -> Tensor:
    """The numbers as they are worth, a trailing dim of two for complex ones."""
    x = x.detach()
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).resolve_neg()


def _width(dtype: torch.dtype, widest: torch.dtype) -> torch.dtype:
    """Float32 where it holds every value of the dtype, else the widest that the device has."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize <= 4 else widest
