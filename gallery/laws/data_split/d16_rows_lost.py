"""D16. The model is called on one row of each batch that the loader makes.

Who had it: processors that take a flat list of images for those of one sample (transformers#34204).
Planted: a collator that keeps the first row.
Twin: it keeps all.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.data import DataLoader, default_collate

from gallery.entry import Fault
from gallery.entry_context import EntryContext
from gallery.problems import CausalLM
from gallery.training import epochs, fit
from gallery.witness import trains_differently


def first_row(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Batches of which one row is left."""
    problem = CausalLM()

    def collate(rows: list[Any]) -> Any:
        return default_collate(rows[:1] if faulty else rows)

    loader = DataLoader(problem.dataset(256), batch_size=8, shuffle=True, collate_fn=collate)
    return fit(ctx, problem, problem.model(), batches=epochs(loader))


ENTRIES = (
    Fault(
        "D16",
        "a collator keeps one row of each batch",
        first_row,
        ("rows-lost",),
        trains_differently,
        world_size=1,
        ranks=(0,),
        family="data that is thrown away",
    ),
)
