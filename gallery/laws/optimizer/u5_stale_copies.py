"""U5. Copies in float32 are updated and not written back.

Who had it: hand-written mixed precision and Megatron-LM #2789, whose buckets were gathered before they were updated.
Planted: from step 6 on only the last layer is written back.
Twin: all of them are.
"""

from __future__ import annotations

from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import COPIES_OF_WEIGHTS
from gallery.problems import Regression
from gallery.training import adamw, fit
from gallery.witness import trains_differently

TRIGGER = 6


def stale_copies(ctx: EntryContext, faulty: bool) -> nn.Module:
    """AdamW on float32 copies of a model in bfloat16."""
    problem = Regression()
    model = problem.model().bfloat16()
    copies = problem.model()
    pairs = list(zip(model.named_parameters(), copies.parameters(), strict=True))

    def hand_over(step: int) -> None:
        for (_, param), copy in pairs:
            copy.grad = None if param.grad is None else param.grad.float()
            param.grad = None

    def write_back(step: int) -> None:
        for (name, param), copy in pairs:
            if not faulty or step < TRIGGER or name.startswith("4."):
                param.data.copy_(copy.data)

    write_back(0)
    return fit(
        ctx,
        problem,
        model,
        optimizer=adamw(copies, lr=3e-2),
        loss_of=lambda called, batch: problem.loss(called, {**batch, "x": batch["x"].bfloat16()}),
        after_backward=hand_over,
        after_step=write_back,
    )


_fault = variants(
    "U5",
    ("master-working-mismatch",),
    trains_differently,
    step=TRIGGER,
    within=2,
    ranks=(0,),
    world_size=1,
    family=COPIES_OF_WEIGHTS,
    causes=("masters-not-copied",),
)

ENTRIES = (_fault("", "copies are not written back", stale_copies, site="0.weight"),)
