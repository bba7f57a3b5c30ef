"""U8. The learning rate does not follow the schedule that the script has made.

Who had it: schedulers that are stepped once a rank or micro-batch, so that a schedule for all updates ends after a part
of them (accelerate's scheduler steps once a process); ``scheduler.step()`` in front of ``optimizer.step()``.
Planted: four steps of a linear decay an update; the other order.
Twin: one step, after the update.
"""

from __future__ import annotations

import warnings

from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import SCHEDULES
from gallery.problems import Regression
from gallery.training import STEPS, adamw, fit, nothing
from gallery.witness import trains_differently


def too_fast(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A decay to 0 over all updates, stepped once for each of four ranks."""
    model = Regression().model()
    optimizer = adamw(model)
    scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / STEPS))

    def advance(step: int) -> None:
        for _ in range(4 if faulty else 1):
            scheduler.step()

    return fit(ctx, Regression(), model, optimizer=optimizer, after_step=advance)


def too_early(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The scheduler is stepped between the backward pass and the optimizer."""
    model = Regression().model()
    optimizer = adamw(model)
    scheduler = LambdaLR(optimizer, lambda step: 0.9**step)

    def advance(step: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step()

    before, after = (advance, nothing) if faulty else (nothing, advance)
    return fit(ctx, Regression(), model, optimizer=optimizer, after_backward=before, after_step=after)


_fault = variants(
    "U8",
    ("schedule-differs",),
    trains_differently,
    ranks=(0,),
    world_size=1,
    family=SCHEDULES,
    causes=("schedule-wrong",),
)

ENTRIES = (
    _fault("", "the schedule is stepped four times an update, and ends", too_fast, step=3),
    _fault("order", "the scheduler is stepped before the optimizer", too_early),
)
