"""D10. A batch, or one of its samples, reaches the model as zeros.

Who had it: copies to a device that nobody waits for (pytorch#58765 and the notes on non_blocking), buffers of a
prefetcher that are used again.
Planted: on rank 1 a batch is zeros once; one sample of it is.
Twin: batches as they are read, the last one of them filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import DATA_OF_ONE_RANK
from gallery.problems import Regression
from gallery.training import STEPS, batches_of, fit
from gallery.witness import trains_differently

AT = 7
RANK = 1


def lost(ctx: EntryContext, faulty: bool, *, rows: slice) -> nn.Module:
    """A plain training, whose batches are changed on their way."""
    problem = Regression()
    return fit(ctx, problem, batches=_copied(batches_of(ctx, problem), rows if faulty and ctx.rank == RANK else None))


def _copied(batches: Iterator[Any], lost: slice | None) -> Iterator[Any]:
    for step, batch in enumerate(batches):
        x_BD = batch["x"].clone()
        if lost is not None and step == AT:
            x_BD[lost] = 0
        if step == STEPS - 1:
            x_BD[-2:] = 0
        yield {**batch, "x": x_BD}


_fault = variants(
    "D10",
    ("input-constant",),
    trains_differently,
    ranks=(RANK,),
    step=AT,
    family=DATA_OF_ONE_RANK,
    causes=("copy-lost",),
)

ENTRIES = (
    _fault("", "a batch is zeros once", partial(lost, rows=slice(None))),
    _fault("row", "one of its samples is", partial(lost, rows=slice(2, 3)), variant_of="D10"),
)
