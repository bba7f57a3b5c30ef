"""R6. The ranks disagree on the loss scale, or on whether to take a step.

Who had it: P#136009 (gradient scalers fall out of step between ranks), and loops that skip an update when the *local*
loss looks wrong. A rank that unscales by its own scale, or leaves out an update, moves away from the others.
Planted: rank 0 resumes its scaler from a checkpoint and the others start afresh; a scaler that sees an overflow on
one rank before the reduction; a step skipped on one rank because its own loss passed a limit.
Twin: one scale, and decisions that all ranks share.
"""

from __future__ import annotations

from itertools import islice

from torch import nn
from torch.amp import GradScaler

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import GRADIENT_SCALERS
from gallery.problems import CausalLM, Regression
from gallery.training import STEPS, adamw, batches_of, fit, mean_gradients, sgd, wrapped
from gallery.witness import replicas_differ

TRIGGER = 6


def resumed_scaler(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Rank 0 has the scale of the checkpoint, the others the initial one."""
    problem = CausalLM()
    model = wrapped(problem.model())
    scaler = GradScaler("cpu", init_scale=2.0**12 if faulty and ctx.rank == 0 else 2.0**13)
    return fit(ctx, problem, model, optimizer=sgd(model), scaler=scaler)


def skipped_update(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Rank 1 alone finds its loss too high once, and leaves the update out."""
    return _with_updates(ctx, 0 if faulty else 1)


def extra_update(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Rank 1 of four steps its optimizer twice, once."""
    return _with_updates(ctx, 2 if faulty else 1)


def _with_updates(ctx: EntryContext, updates: int) -> nn.Module:
    """Train by hand; rank 1 makes so many ``updates`` of the trigger step, every other step and rank makes one."""
    problem = Regression()
    model = wrapped(problem.model())
    optimizer = sgd(model)
    watch = ctx.watch(model, optimizer)
    for step, batch in enumerate(islice(batches_of(ctx, problem), STEPS)):
        with watch.step(batch):
            loss = problem.loss(model, batch)
            watch.loss(loss.detach(), problem.tokens(batch))
            loss.backward()
            for _ in range(updates if ctx.rank == 1 and step == TRIGGER else 1):
                optimizer.step()
            optimizer.zero_grad()
        ctx.note([batch], loss.item())
    watch.close()
    return model


def local_overflow(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A hand-written loop where a rank that overflowed drops its gradient and its update, and the rest go on."""
    problem = CausalLM()
    model = problem.model()
    optimizer = adamw(model)

    def reduce(step: int) -> None:
        mean_gradients(model.parameters())
        if faulty and ctx.rank == 1 and step == TRIGGER:
            optimizer.zero_grad()

    return fit(ctx, problem, model, optimizer=optimizer, after_backward=reduce)


ALSO = ("gradient-not-reduced", "reduction-mismatch")

_fault = variants(
    "R6", ("replica-drift",), replicas_differ, step=TRIGGER, family=GRADIENT_SCALERS, causes=("update-count-differs",)
)

ENTRIES = (
    _fault(
        "",
        "gradient scaler resumed on one rank only",
        resumed_scaler,
        may_find=ALSO,
        ranks=(0, 1),
        step=0,
        within=1,
        causes=("loss-scales-differ",),
    ),
    _fault(
        "skipped",
        "one rank leaves out an update",
        skipped_update,
        must_find=("updates-apart",),
        ranks=(1,),
        family="numbers of updates",
    ),
    _fault(
        "extra",
        "one rank of four takes an extra update",
        extra_update,
        must_find=("updates-apart",),
        ranks=(1,),
        world_size=4,
        family="numbers of updates",
    ),
    _fault(
        "overflow",
        "one rank drops the reduced gradient once",
        local_overflow,
        may_find=(*ALSO, "worker-silent"),
        ranks=(0, 1),
        within=1,
        causes=("gradient-dropped-on-rank",),
    ),
)
