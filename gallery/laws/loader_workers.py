"""D14. Loader workers draw augmentations from copies of one generator.

Who had it: data sets that make `np.random.default_rng(seed)` once and are read by several loader workers (NumPy's
global stream had the same fault until torch seeded it in each worker).
Planted: noise from a generator that the data set holds.
Twin: noise from torch's global stream, which torch seeds in each worker.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.problems import Regression
from gallery.training import BATCH_SIZE, STEPS, fit
from gallery.witness import trains_differently
from trueline.demo.epochs import epochs

LOADER_WORKERS = 2


class Noisy(Dataset[Any]):
    """Rows with noise of a generator that is made once, or of the global stream."""

    def __init__(self, rows: Any, *, own: bool) -> None:
        self._rows = rows
        self._generator = torch.Generator().manual_seed(0) if own else None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self._rows[index]
        return {**row, "x": row["x"] + 0.1 * torch.randn(row["x"].shape, generator=self._generator)}


def copied(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The workers of each rank read its part with noise."""
    problem = Regression()
    num_rows = ctx.world_size * STEPS * BATCH_SIZE
    rows = problem.dataset(num_rows).select(range(ctx.rank, num_rows, ctx.world_size))
    loader = DataLoader(
        Noisy(rows, own=faulty),
        batch_size=BATCH_SIZE,
        num_workers=LOADER_WORKERS,
        multiprocessing_context="fork",  # not that of the server of ranks, which would import torch for each
    )
    return fit(ctx, problem, batches=epochs(loader))


_fault = variants(
    "D14",
    ("loader-workers-alike",),
    trains_differently,
    ranks=(0, 1),
    family="draws of loader workers",
    causes=("loader-workers-share-a-stream",),
)

ENTRIES = (_fault("", "a generator that the data set holds is copied into each loader worker", copied),)
