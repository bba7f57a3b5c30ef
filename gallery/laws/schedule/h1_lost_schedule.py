"""H1. A schedule was made, and the learning rate does not follow it.

Who had it: resumed runs whose scheduler starts again (Automodel#763, torch-points3d#630), loops that write the base
rate into the groups at every step, that step the scheduler once an epoch or not at all, or that scheduled an optimizer
which was made again later.
Planted: each of these on a linear decay.
Twin: one step of the scheduler after each update.
"""

from __future__ import annotations

from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import SCHEDULES
from gallery.problems import Regression
from gallery.training import STEPS, adamw, fit
from gallery.witness import trains_differently

TRIGGER = 6
RATE = 3e-3


def _decay(step: int) -> float:
    return max(0.0, 1 - step / STEPS)


def begun_again(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A scheduler is made anew after step 5."""
    model = Regression().model()
    optimizer = adamw(model, lr=RATE)
    schedulers = [LambdaLR(optimizer, _decay)]

    def advance(step: int) -> None:
        schedulers[-1].step()
        if faulty and step == TRIGGER - 1:
            for group in optimizer.param_groups:
                group["lr"] = RATE
                del group["initial_lr"]
            schedulers.append(LambdaLR(optimizer, _decay))

    return fit(ctx, Regression(), model, optimizer=optimizer, after_step=advance)


def overwritten(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The base rate is written into the groups after the scheduler's."""
    model = Regression().model()
    optimizer = adamw(model, lr=RATE)
    scheduler = LambdaLR(optimizer, _decay)

    def advance(step: int) -> None:
        scheduler.step()
        for group in optimizer.param_groups if faulty else ():
            group["lr"] = RATE

    return fit(ctx, Regression(), model, optimizer=optimizer, after_step=advance)


def seldom(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A schedule of updates is stepped once an epoch of four."""
    model = Regression().model()
    optimizer = adamw(model, lr=RATE)
    scheduler = LambdaLR(optimizer, _decay)

    def advance(step: int) -> None:
        if not faulty or step % 4 == 3:
            scheduler.step()

    return fit(ctx, Regression(), model, optimizer=optimizer, after_step=advance)


def never(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A schedule is made and never stepped."""
    model = Regression().model()
    optimizer = adamw(model, lr=RATE)
    scheduler = LambdaLR(optimizer, _decay)
    return fit(
        ctx, Regression(), model, optimizer=optimizer, after_step=lambda step: None if faulty else scheduler.step()
    )


def other_optimizer(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The optimizer is made again behind its schedule."""
    model = Regression().model()
    scheduled = adamw(model, lr=RATE)
    scheduler = LambdaLR(scheduled, _decay)
    optimizer = adamw(model, lr=RATE) if faulty else scheduled
    return fit(ctx, Regression(), model, optimizer=optimizer, after_step=lambda step: scheduler.step())


_fault = variants(
    "H1",
    ("schedule-differs",),
    trains_differently,
    ranks=(0,),
    world_size=1,
    family=SCHEDULES,
    causes=("schedule-wrong",),
)

ENTRIES = (
    _fault("", "the schedule begins again after a resume", begun_again, step=TRIGGER),
    _fault("overwritten", "the base rate is written over the schedule's", overwritten, step=1),
    _fault("seldom", "a schedule of updates is stepped once an epoch", seldom, step=1),
    _fault("never", "a schedule is never stepped", never, step=1),
    _fault("other", "a schedule of an optimizer that was made again", other_optimizer, step=1),
)
