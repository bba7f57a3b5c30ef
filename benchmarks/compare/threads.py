"""Another number of threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def two_threads() -> Iterator[None]:
    """Two threads, then one."""
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(1)
