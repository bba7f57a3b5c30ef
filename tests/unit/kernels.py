"""All that can measure in this process: NumPy, and the compiled kernel with each instruction set of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trueline.tensor.native import NATIVE, Native

SETS = NATIVE.kernel.instruction_sets() if NATIVE is not None else []


@contextmanager
def using(name: str) -> Iterator[Native]:
    """The kernel with one of ``SETS``."""
    assert NATIVE is not None
    NATIVE.kernel.use(name)
    try:
        yield NATIVE
    finally:
        NATIVE.kernel.use(SETS[-1])
