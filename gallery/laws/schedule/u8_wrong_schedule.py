"""U8. The learning rate does not follow the schedule that the script has made.

Who had it: schedulers that are stepped once a rank or micro-batch, so that a schedule for all updates ends after a part
of them (accelerate's scheduler steps once a process); ``scheduler.step()`` in front of ``optimizer.step()``; a cosine
that is made for the number of epochs and stepped once a batch.
Planted: four steps of a linear decay an update; the other order; a cosine for four of twelve updates, and one that is
made for twelve and stepped twice an update; one that is made for four times as many as the command declares.
Twin: one step, after the update.
"""

from __future__ import annotations

import functools
import math
import sys
import warnings
from unittest import mock

from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

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


def too_short(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A cosine for the number of epochs is stepped once a batch."""
    model = Regression().model()
    optimizer = adamw(model)
    scheduler = CosineAnnealingLR(optimizer, T_max=4 if faulty else STEPS)
    return fit(ctx, Regression(), model, optimizer=optimizer, after_step=lambda step: scheduler.step())


def _cosine(step: int, *, num_training_steps: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / num_training_steps))


def a_process_each(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A cosine is stepped once for each of two processes, and its length does not count them."""
    model = Regression().model()
    optimizer = adamw(model)
    length = STEPS if faulty else 2 * STEPS
    scheduler = LambdaLR(optimizer, functools.partial(_cosine, num_training_steps=length))

    def advance(step: int) -> None:
        scheduler.step()
        scheduler.step()

    return fit(ctx, Regression(), model, optimizer=optimizer, after_step=advance)


def too_long(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A cosine counts the micro-batches of all updates, and is stepped once an update."""
    model = Regression().model()
    optimizer = adamw(model)
    length = 4 * STEPS if faulty else STEPS
    scheduler = LambdaLR(optimizer, functools.partial(_cosine, num_training_steps=length))
    with mock.patch.object(sys, "argv", ["train.py", "--max_steps", str(STEPS)]):
        watch = ctx.watch(model, optimizer)
    return fit(ctx, Regression(), model, optimizer=optimizer, after_step=lambda step: scheduler.step(), watch=watch)


_fault = variants(
    "U8",
    ("schedule-differs",),
    trains_differently,
    ranks=(0,),
    world_size=1,
    family=SCHEDULES,
    causes=("schedule-wrong",),
)

_passed = variants(
    "U8",
    ("schedule-passed",),
    trains_differently,
    ranks=(0,),
    world_size=1,
    family=SCHEDULES,
    causes=("schedule-declared-for-another-length",),
)

ENTRIES = (
    _fault("", "the schedule is stepped four times an update, and ends", too_fast, step=3),
    _fault("order", "the scheduler is stepped before the optimizer", too_early),
    _passed("short", "a cosine for the number of epochs is stepped once a batch", too_short, step=4),
    _passed("processes", "a cosine for all updates is stepped once a process", a_process_each, step=6),
    _passed(
        "long",
        "a cosine for all micro-batches is stepped once an update",
        too_long,
        must_find=("schedule-length",),
        causes=(),
        step=1,
    ),
)
