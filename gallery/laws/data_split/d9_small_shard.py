"""D9. The shard of one rank holds next to nothing, and its few samples come again and again.

Who had it: shard sizes that are written into the code, the rest of a division on the last rank, one short file.
Planted: the last of four ranks draws from four rows, the others from 256 each.
Twin: every rank draws from as many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import DATA_OF_ONE_RANK
from gallery.problems import Regression, Rows
from gallery.training import BATCH_SIZE, fit
from gallery.witness import samples_differ

BAD_RANK, SHARD, LEFT, STEPS = 3, 256, 4, 40


def small_shard(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Each rank draws, with replacement, from its own rows."""
    problem = Regression()
    rows = problem.dataset(SHARD * ctx.world_size)
    begin = SHARD * ctx.rank
    end = begin + (LEFT if faulty and ctx.rank == BAD_RANK else SHARD)
    return fit(ctx, problem, batches=_drawn(rows, begin, end, seed=ctx.rank), steps=STEPS)


def _drawn(rows: Rows, begin: int, end: int, *, seed: int) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        at = torch.randint(begin, end, (BATCH_SIZE,), generator=generator)
        yield {name: column[at] for name, column in rows.columns.items()}


ENTRIES = (
    variants("D9", ("shard-small",), samples_differ, ranks=(BAD_RANK,), within=None, world_size=4)(
        "", "the last rank's shard is four samples", small_shard, family=DATA_OF_ONE_RANK, causes=("shard-too-small",)
    ),
)
"""Which of the gallery."""
