"""D8. A stream is not split between the workers of its loader.

Who had it: nearly everyone who wrote an `IterableDataset` and then set `num_workers` (PyTorch's own documentation
warns of it). Each loader worker reads the whole stream, so every batch comes as many times in a row as there are.
Planted: two loader workers that read the same part; the part is the rank's own.
Twin: the same stream, of which each loader worker takes every second batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import DATA_THAT_IS_NOT_SPLIT
from gallery.problems import Regression
from gallery.training import BATCH_SIZE, fit
from gallery.witness import trains_differently

LOADER_WORKERS = 2
STEPS = 24


class Stream(IterableDataset[Any]):
    """Rows of one rank, one after the other; ``split`` deals batches of them to the loader workers."""

    def __init__(self, rows: Any, *, split: bool) -> None:
        self._rows = rows
        self._split = split

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for index in range(len(self._rows)):
            if not self._split or info is None or index // BATCH_SIZE % info.num_workers == info.id:
                yield self._rows[index]


def unsplit(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Both loader workers of each rank read all of the rank's part."""
    problem = Regression()
    num_rows = ctx.world_size * STEPS * BATCH_SIZE
    rows = problem.dataset(num_rows).select(range(ctx.rank, num_rows, ctx.world_size))
    loader = DataLoader(
        Stream(rows, split=not faulty),
        batch_size=BATCH_SIZE,
        num_workers=LOADER_WORKERS,
        multiprocessing_context="fork",  # not that of the server of ranks, which would import torch for each
    )
    return fit(ctx, problem, batches=iter(loader), steps=STEPS)


_fault = variants(
    "D8",
    ("sample-repeats",),
    trains_differently,
    ranks=(0, 1),
    family=DATA_THAT_IS_NOT_SPLIT,
    causes=("stream-read-by-each-loader-worker",),
)

ENTRIES = (_fault("", "a stream that two loader workers both read whole", unsplit),)
