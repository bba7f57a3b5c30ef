"""A loader, for ever."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader


def epochs(loader: DataLoader[Any], *, first: int = 0, sampler: Any = None) -> Iterator[Any]:
    """Batches for ever, with ``set_epoch`` before each pass where the sampler (default: the loader's) has it."""
    for epoch in itertools.count(first):
        set_epoch = getattr(sampler or loader.sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        yield from loader
