"""H3. A job is resumed with a lower learning rate, and trains at the old one.

Who had it: scripts that make the optimizer with the rate of the command and then load its state, which puts the rate of
the checkpoint back; "`--lr` has no effect".
Planted: the second start of a job, with another rate in its command.
Twin: the rate is set again after the state was loaded.
"""

from __future__ import annotations

import sys
from unittest import mock

from torch import nn

from gallery.entry import Fault
from gallery.entry_context import EntryContext
from gallery.families import SCHEDULES
from gallery.problems import Regression
from gallery.training import STEPS, adamw, batches_of, fit
from gallery.witness import trains_differently

AGAIN = STEPS // 2
RATE, LOWER = 3e-3, 1e-4


def kept(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The state of the optimizer is loaded over the new rate."""
    problem = Regression()
    batches = batches_of(ctx, problem)
    model = problem.model()
    optimizer = adamw(model, lr=RATE)
    fit(ctx, problem, model, optimizer=optimizer, batches=batches, steps=AGAIN)
    later = problem.model()
    later.load_state_dict(model.state_dict())
    later_optimizer = adamw(later, lr=LOWER)
    later_optimizer.load_state_dict(optimizer.state_dict())
    for group in () if faulty else later_optimizer.param_groups:
        group["lr"] = LOWER
    with mock.patch.object(sys, "argv", ["train.py", "--resume", "--lr", str(LOWER)]):
        watch = ctx.watch(later, later_optimizer, goes_on_from=AGAIN)
    return fit(ctx, problem, later, optimizer=later_optimizer, batches=batches, steps=STEPS - AGAIN, watch=watch)


ENTRIES = (
    Fault(
        "H3",
        "the state of the optimizer puts the old rate back",
        kept,
        must_find=("rate-not-in-force",),
        shows=trains_differently,
        ranks=(0,),
        step=AGAIN,
        world_size=1,
        family=SCHEDULES,
        causes=("rate-loaded",),
    ),
)
