"""Y3. A part is trained in evaluation mode from the first step on.

Who had it: fine-tuning of what `from_pretrained` returned inside of another module, under Lightning since 2.2, which
leaves each module in the mode it has.
Planted: `eval()` on one block.
Twin: that block is frozen.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from gallery.entry import Fault
from gallery.entry_context import EntryContext
from gallery.families import MODES
from gallery.problems import CausalLM
from gallery.training import adamw, fit
from gallery.witness import trains_differently


def block_evaluates(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The first block is in evaluation mode, trained or frozen."""
    problem = CausalLM(dropout=0.1)
    model: Any = problem.model()
    model.blocks[0].eval().requires_grad_(faulty)
    return fit(ctx, problem, model, optimizer=adamw(model), steps=10)


ENTRIES = (
    Fault(
        "Y3",
        "a block is trained in evaluation mode",
        block_evaluates,
        ("trains-in-evaluation",),
        trains_differently,
        ranks=(0,),
        step=2,
        site="blocks.0",
        world_size=1,
        family=MODES,
    ),
)
