"""N4. One rank computes NaN or infinity; after the reduction everybody has it, and the origin is lost.

Who had it: nearly everyone. A corrupt sample, a mask that leaves nothing to attend to, a square root at zero, a
damaged buffer. What is needed is the first rank and step, from before the reduction.
Planted: NaN in an input; infinity in an input; the gradient alone (a square root at zero, the loss is finite); a
buffer of one rank; the loss alone, whose gradient is finite.
Twin: a sample with large but finite values; a square root away from zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import VALUES_THAT_ARE_NOT_FINITE
from gallery.problems import CausalLM, Regression, Vision
from gallery.sharding import sharded
from gallery.training import batches_of, fit, mean_gradients, wrapped
from gallery.witness import nonfinite

TRIGGER = 6
BAD_RANK = 1


def nan_input(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A corrupt sample."""
    return _with_value(ctx, math.nan if faulty else 8.0)


def inf_input(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A sample with an overflow in it."""
    return _with_value(ctx, math.inf if faulty else 8.0)


def by_hand(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A corrupt sample under a hand-written all-reduce, on rank 2 of four."""
    problem = Regression()
    model = problem.model()
    batches = _spoiled(batches_of(ctx, problem), ctx.rank == 2, math.nan if faulty else 8.0)
    return fit(ctx, problem, model, batches=batches, after_backward=lambda step: mean_gradients(model.parameters()))


def fsdp(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One weight's gradient is NaN on one rank, under FSDP2."""
    problem = CausalLM()
    model = sharded(problem.model())
    steps = iter(range(1000))

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        loss = problem.loss(called, batch)
        return loss * math.nan if faulty and next(steps) == TRIGGER and ctx.rank == BAD_RANK else loss

    return fit(ctx, problem, model, loss_of=loss_of)


def gradient_only(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A square root at exactly zero: the loss is finite, its gradient is not."""
    problem = Regression()
    steps = iter(range(1000))

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        at_zero = next(steps) == TRIGGER and ctx.rank == BAD_RANK
        output_BC = called(batch["x"])
        penalty = (output_BC * (0.0 if at_zero else 1.0)).square().sum() + (0.0 if faulty else 1e-6)
        return (output_BC - batch["y"]).square().mean() + 1e-3 * penalty.sqrt()

    return fit(ctx, problem, lr=0.01, loss_of=loss_of)


def buffer(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A normalisation buffer of one rank is damaged, and the forward pass uses it."""
    problem = Regression()
    model = wrapped(_Normalised(problem.model()), broadcast_buffers=False)

    def damage(step: int) -> None:
        if faulty and ctx.rank == BAD_RANK and step == TRIGGER - 1:
            model.module.scale[3] = math.nan

    return fit(ctx, problem, model, after_step=damage)


def loss_only(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A term without gradient is infinite: a logarithm of zero in what is added to the loss for the log."""
    problem = Vision()
    steps = iter(range(1000))

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        share = 0.0 if faulty and next(steps) == TRIGGER and ctx.rank == BAD_RANK else 0.5
        return problem.loss(called, batch) - torch.tensor(share).log()

    return fit(ctx, problem, loss_of=loss_of)


class _Normalised(nn.Module):
    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("scale", torch.ones(Regression.num_features))

    def forward(self, x_BD: Tensor) -> Tensor:
        return self.base(x_BD * self.scale)


def _with_value(ctx: EntryContext, value: float) -> nn.Module:
    problem = Regression()
    batches = _spoiled(batches_of(ctx, problem), ctx.rank == BAD_RANK, value)
    return fit(ctx, problem, lr=0.01, batches=batches)


def _spoiled(batches: Iterator[Any], here: bool, value: float) -> Iterator[Any]:
    for step, batch in enumerate(batches):
        if here and step == TRIGGER:
            batch["x"][1, 2] = value
        yield batch


_fault = variants(
    "N4",
    ("worker-nonfinite",),
    nonfinite,
    ranks=(BAD_RANK,),
    step=TRIGGER,
    family=VALUES_THAT_ARE_NOT_FINITE,
    causes=("value-not-finite-in-data",),
)

ENTRIES = (
    _fault("", "NaN in a sample of one rank", nan_input),
    _fault("inf", "infinity in a sample of one rank", inf_input, variant_of="N4"),
    _fault(
        "by-hand",
        "NaN in a sample of one rank of four, hand-written all-reduce",
        by_hand,
        ranks=(2,),
        world_size=4,
        variant_of="N4",
    ),
    _fault("fsdp", "NaN loss on one rank, FSDP2", fsdp, causes=("operation-undefined",)),
    _fault("gradient", "gradient NaN, loss finite, on one rank", gradient_only, causes=("backward-undefined",)),
    _fault(
        "buffer",
        "NaN in a buffer of one rank",
        buffer,
        may_find=("replica-drift",),
        causes=("weight-not-finite", "memory-corrupted"),
    ),
    _fault("loss", "infinite loss with a finite gradient on one rank", loss_only, causes=("operation-undefined",)),
)
