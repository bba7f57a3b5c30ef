"""D19. Evaluations read samples that are trained on.

Who had it: `random_split` of two data sets that differ in their augmentation, without one generator; rows that are
held out and stay in what is trained on.
Planted: what is trained on goes on into three quarters of the held-out rows.
Twin: it ends where they begin.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from gallery.entry import Fault
from gallery.entry_context import EntryContext
from gallery.problems import Regression
from gallery.training import epochs, fit, sharded_loader, wrapped
from gallery.witness import trains_differently

SAMPLES, HELD_OUT, EPOCH = 64, 32, 4


def shared_rows(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Training with an evaluation after each epoch, of rows that are held out, or of some that are trained on."""
    problem = Regression()
    whole = problem.dataset(SAMPLES + HELD_OUT)
    trained = Subset(whole, range(3 * HELD_OUT // 4, SAMPLES + 3 * HELD_OUT // 4) if faulty else range(SAMPLES))
    held_out = Subset(whole, range(SAMPLES, SAMPLES + HELD_OUT))
    model = wrapped(problem.model())

    def evaluate(step: int) -> None:
        if step % EPOCH == EPOCH - 1:
            model.eval()
            with torch.no_grad():
                for batch in DataLoader(held_out, batch_size=8):
                    problem.loss(model, batch)
            model.train()

    batches = epochs(sharded_loader(ctx, trained, batch_size=SAMPLES // EPOCH // ctx.world_size))
    return fit(ctx, problem, model, batches=batches, after_step=evaluate)


ENTRIES = (
    Fault(
        "D19",
        "three quarters of what evaluations read are trained on",
        shared_rows,
        ("held-out-trained",),
        trains_differently,
        ranks=(0, 1),
        within=None,
        family="what evaluations read",
    ),
)
