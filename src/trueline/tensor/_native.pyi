"""The kernels of ``kernel/``, as compiled. ``tensor.native`` loads them where they are."""

import numpy as np
from numpy.typing import NDArray

INTERFACE: int
FLOAT16: int
BFLOAT16: int
FLOAT32: int
FLOAT64: int
BOOL: int
INT8: int
UINT8: int
INT16: int
UINT16: int
INT32: int
UINT32: int
INT64: int
UINT64: int

def measure_dense(
    kind: int,
    address: int,
    num: int,
    out_S: NDArray[np.float64] | None,
    weights: bytes,
    starts: int | NDArray[np.int64],
    prints: bool,
    /,
) -> int:
    """Write the statistics of ``num`` numbers in memory to ``out_S``, unless it is None; return their fingerprint
    (uint64), or 0 where ``prints`` is False.

    ``starts`` is the place of the first number in the whole, or those of runs of equal length.
    """

def measure_strided(
    kind: int,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    out_S: NDArray[np.float64] | None,
    weights: bytes,
    starts: int | NDArray[np.int64],
    prints: bool,
    /,
) -> int:
    """The same of numbers in row-major order of ``shape``, that lie as far apart as ``strides`` say, in numbers."""

def exponents(kind: int, address: int, num: int, counts: NDArray[np.int64], /) -> None:
    """Add the histogram of the exponents of ``num`` floats in memory to ``counts`` [256]."""

def sketch(
    table: NDArray[np.int64],
    gradients: list[int],
    k: int,
    first_shard: int,
    num_shards: int,
    norm2: NDArray[np.float64],
    sketches: NDArray[np.float64],
    /,
) -> None:
    """Write the squared norms of n gradients to ``norm2`` [n], and add their sketches to ``sketches`` [m, k].

    ``gradients`` has five numbers for each: the parameter, the row of ``sketches``, the kind, the address, and the
    elements, which must be those of ``num_shards`` shards. ``table`` [P, 6] has for each parameter the elements of one
    shard, its rows of k, what is left of it (the tail), the place of the first shard's tail among those of its group,
    and the addresses of the signs, float32, of its rows and of the rows of tails.
    """

def instruction_sets() -> list[str]:
    """Those that the kernels are compiled for and this machine has, the one in use by default last."""

def use(name: str, /) -> None:
    """Use another of them in this process; raises ValueError for any other name."""
