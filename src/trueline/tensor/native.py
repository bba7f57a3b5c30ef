"""The kernel that was compiled with the package, where there was a compiler: it reads a value's memory once for all.

Without it NumPy measures: the same counts, extremes and fingerprints, and sums that differ by their rounding. The
kernel's are made in float64, in 16 lanes whatever the machine's vectors are, and so are the same on every machine.
``TRUELINE_NATIVE=0`` in the environment leaves it out.

Letters: S the statistics in the order of ``schema.records.STAT_NAMES``.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trueline.tensor.lanes import PARTS
from trueline.tensor.shard import ShardRuns
from trueline.tensor.weights import host_weights

INTERFACE = 4
"""The version that the kernel must report: one that was built from other sources than these is not used."""

SWITCH = "TRUELINE_NATIVE"

WORTH = {
    torch.float16: "FLOAT16",
    torch.bfloat16: "BFLOAT16",
    torch.float32: "FLOAT32",
    torch.float64: "FLOAT64",
    torch.bool: "BOOL",
    torch.int8: "INT8",
    torch.uint8: "UINT8",
    torch.int16: "INT16",
    torch.uint16: "UINT16",
    torch.int32: "INT32",
    torch.uint32: "UINT32",
    torch.int64: "INT64",
    torch.uint64: "UINT64",
}
"""Dtypes that the kernel measures, with its codes for them; complex numbers are passed as two real ones."""

_WORDS = {1: "INT8", 2: "INT16", 4: "INT32", 8: "INT64"}


class Native:
    """Statistics and fingerprints of tensors in host memory. Holds nothing but tables; threads may share it.

    What a method returns is None, or False, where the kernel knows no numbers of that dtype. A complex element counts
    as two.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._numbers = {dtype: (getattr(kernel, name), 1) for dtype, name in WORTH.items()}
        self._numbers |= {dtype: (self._numbers[part][0], 2) for dtype, part in PARTS.items()}
        self._words = {size: getattr(kernel, name) for size, name in _WORDS.items()}

    def stats_into(self, x: Tensor, out_S: NDArray[np.float64], shard: ShardRuns | None = None) -> bool:
        """Write the statistics of a CPU tensor, of which ``shard`` says what part of the whole it is, to ``out_S``
        (float64 [S]).
        """
        kind_and_parts = self._numbers.get(x.dtype)
        if kind_and_parts is None:
            return False
        kind, parts = kind_and_parts
        if shard is None and parts == 1 and x.is_contiguous() and not x.is_neg():  # as nearly all are
            self.kernel.measure_dense(kind, x.data_ptr(), x.numel(), out_S, packed_weights(), 0, False)
        else:
            self._measure(x, kind, parts, out_S, shard, prints=False)
        return True

    def all_into(self, x: Tensor, out_S: NDArray[np.float64], shard: ShardRuns | None = None) -> int | None:
        """The same, and the fingerprint (uint64), in one pass over memory."""
        kind_and_parts = self._numbers.get(x.dtype)
        return None if kind_and_parts is None else self._measure(x, *kind_and_parts, out_S, shard)

    def fingerprint(self, x: Tensor, shard: ShardRuns | None = None) -> int | None:
        """The fingerprint alone, of any dtype."""
        parts = 2 if x.is_complex() else 1
        kind = self._words.get(x.element_size() // parts)
        return None if kind is None else self._measure(x, kind, parts, None, shard)

    def add_exponents(self, block: Tensor, counts_E: NDArray[np.int64]) -> bool:
        """Add the histogram of a contiguous block of real floats to ``counts_E`` (int64 [256])."""
        kind, _ = self._numbers.get(block.dtype, (None, 1))
        if kind is None or not block.dtype.is_floating_point:
            return False
        self.kernel.exponents(kind, block.data_ptr(), block.numel(), counts_E)
        return True

    def _measure(
        self,
        x: Tensor,
        kind: int,
        parts: int,
        out_S: NDArray[np.float64] | None,
        shard: ShardRuns | None,
        *,
        prints: bool = True,
    ) -> int:
        starts: Any = 0 if shard is None else shard.first
        if shard is not None and shard.num_runs != 1:
            x, starts = x.detach().resolve_conj().resolve_neg().contiguous(), shard.starts(x.device).numpy()
        if x.is_contiguous() and not x.is_neg() and (parts == 1 or not x.is_conj()):
            num = x.numel() * parts
            return self.kernel.measure_dense(kind, x.data_ptr(), num, out_S, packed_weights(), starts, prints)
        x = x.detach()
        x = torch.view_as_real(x.resolve_conj()) if parts == 2 else x.resolve_neg()
        shape, strides = x.shape, x.stride()
        return self.kernel.measure_strided(kind, x.data_ptr(), shape, strides, out_S, packed_weights(), starts, prints)


@cache
def packed_weights() -> bytes:
    """The weights of the fingerprint as the kernel has them (``Weights`` in kernel/kernel.h); takes milliseconds once.

    A place is low + 2³² · high, where low is signed, so that a product with it fits one instruction.
    """
    weights = host_weights()
    word = weights.word.view(np.uint64)
    low = word.astype(np.uint32)
    high = ((word >> np.uint64(32)) + (low >> np.uint32(31))).astype(np.uint32)
    return b"".join(table.tobytes() for table in (low, high, weights.page, weights.book))


def _load() -> Native | None:
    if os.environ.get(SWITCH, "1") == "0":
        return None
    try:
        from trueline.tensor import _native  # what was not built is not there
    except ImportError:
        return None
    return Native(_native) if getattr(_native, "INTERFACE", None) == INTERFACE else None


NATIVE = _load()
"""The kernel of this process; None where NumPy measures."""
