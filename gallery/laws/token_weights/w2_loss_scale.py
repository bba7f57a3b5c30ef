"""W2. All tokens together weigh another number than 1, or a gradient scaler finds no scale.

Who had it: loops with gradient accumulation that forget to divide; losses with a constant left in from an experiment;
jobs in float16 whose scale halves again and again, so that nothing is trained any more (what torch's page on GradScaler
warns of).
Planted: four micro-batches a step whose means are added up; a loss that is 1.1 times the mean, under a gradient scaler;
a loss that overflows float16 from step 6 on, or at every third step.
Twin: the means divided by four; the mean itself, under the same scaler; in float32.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import DIVISORS, GRADIENT_SCALERS, SCALE_OF_LOSSES
from gallery.problems import CausalLM
from gallery.training import fit, fit_accumulating
from gallery.witness import trains_differently

TRIGGER = 6
NUM_MICRO = 4


def undivided(ctx: EntryContext, faulty: bool) -> nn.Module:
    """DDP, reduced at the last of four micro-batches."""
    problem = CausalLM()

    def loss_of(model: nn.Module, batch: Any, micro: int) -> Tensor:
        return problem.loss(model, batch) * (NUM_MICRO if faulty else 1)

    return fit_accumulating(ctx, problem, num_micro=NUM_MICRO, loss_of=loss_of)


def multiplied(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One process under a gradient scaler."""
    problem = CausalLM()

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return problem.loss(model, batch) * (1.1 if faulty else 1)

    return fit(ctx, problem, problem.model(), loss_of=loss_of, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))


def overflowing(ctx: EntryContext, faulty: bool, *, often: bool) -> nn.Module:
    """The loss is multiplied in float16, and is infinite there before the scaler has it."""
    problem = CausalLM()
    steps = iter(range(1000))

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        step, loss = next(steps), problem.loss(model, batch)
        overflows = faulty and (step % 3 == 1 if often else step >= TRIGGER)
        return loss.to(torch.float16) * 1e5 * 1e5 if overflows else loss

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=1000)
    return fit(ctx, problem, problem.model(), loss_of=loss_of, scaler=scaler)


_fault = variants(
    "W2", ("loss-scale-wrong",), trains_differently, ranks=(0, 1), family=GRADIENT_SCALERS, causes=("scale-never-fits",)
)

ENTRIES = (
    _fault(
        "",
        "the loss is not divided by the micro-batches of a step",
        undivided,
        family=DIVISORS,
        causes=("loss-not-divided",),
    ),
    _fault(
        "constant",
        "the loss is 1.1 times the mean",
        multiplied,
        ranks=(0,),
        world_size=1,
        family=SCALE_OF_LOSSES,
        causes=("loss-scaled",),
    ),
    _fault(
        "left-out",
        "the scaler leaves out all updates",
        partial(overflowing, often=False),
        ranks=(0,),
        step=TRIGGER - 1,
        world_size=1,
    ),
    _fault(
        "collapsed", "the loss scale falls below 1", partial(overflowing, often=True), ranks=(0,), step=3, world_size=1
    ),
)
