"""S1. One worker's gradient is what it should be, times a factor.

Who had it: a loss divided by this rank's own count where the others divide by another (Hugging Face #34191 family), a
loss weight or an accumulation divisor that only one rank has, a loss scale that one rank puts in and nobody takes out.
Nothing fails: its samples count c times in every update.
Planted: the loss of one rank times 1.1, times 2, halved; its gradient alone, by hooks on parameters, or by a loss scale
of 1,024 that is not in the recorded loss; under DDP, FSDP2 and a hand-written all-reduce; of two workers and of four,
from the first step or later.
Twin: the same factor on every rank; of four ranks that of a loss is taken out of the gradients before the update.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

from torch import Tensor, nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import GRADIENT_SCALERS, SCALE_OF_LOSSES
from gallery.problems import CausalLM, Problem, Regression
from gallery.sharding import sharded
from gallery.training import batches_of, fit, mean_gradients, nothing, wrapped
from gallery.witness import trains_differently

BAD_RANK = 1
LATER = 30
"""The step from which a factor that comes later acts: by then two workers' own histories tell which of them jumped."""


def loss_times(
    ctx: EntryContext, faulty: bool, *, factor: float = 2.0, first: int = 0, steps: int, batch_size: int = 16
) -> nn.Module:
    """The loss is multiplied before backward, under DDP, from step ``first`` on."""
    problem = CausalLM()
    at_step = count()

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        here = next(at_step) >= first and _here(ctx, faulty)
        return problem.loss(called, batch) * (factor if here else 1.0)

    model = wrapped(problem.model())
    batches = _fresh(ctx, problem, batch_size)
    takes_out = not faulty and ctx.world_size > 2  # of two, half a gradient is one that is divided twice
    after = partial(_take_out, model, factor, first) if takes_out else nothing
    return fit(ctx, problem, model, batches=batches, steps=steps, loss_of=loss_of, after_backward=after)


def by_hooks(ctx: EntryContext, faulty: bool, *, factor: float = 2.0) -> nn.Module:
    """The gradient of every parameter is multiplied as it comes, under DDP; the loss is as it should be."""
    problem = CausalLM()
    model = wrapped(problem.model())
    if _here(ctx, faulty):
        for param in model.parameters():
            param.register_hook(lambda gradient: gradient * factor)
    return fit(ctx, problem, model, batches=_fresh(ctx, problem), steps=20)


def kept_scale(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The loss is scaled for backward, as against underflow, and nobody takes the scale out; it is logged without."""
    problem = CausalLM()
    scale = 2.0**10 if _here(ctx, faulty) else 1.0

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        loss = problem.loss(called, batch)
        return loss.detach() + scale * (loss - loss.detach())

    return fit(ctx, problem, batches=_fresh(ctx, problem), steps=20, loss_of=loss_of)


def halved_by_hand(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A hand-written loop in which the loss is divided by a number of micro-batches that there are not."""
    problem = Regression()
    model = problem.model()

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        return problem.loss(called, batch) / (2 if _here(ctx, faulty) else 1)

    return fit(
        ctx,
        problem,
        model,
        batches=_fresh(ctx, problem, 64),
        steps=24,
        loss_of=loss_of,
        after_backward=lambda step: mean_gradients(model.parameters()),
    )


def fsdp(ctx: EntryContext, faulty: bool, *, factor: float = 2.0) -> nn.Module:
    """The loss is multiplied before backward, under FSDP2."""
    problem = CausalLM()
    model = sharded(problem.model())

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        return problem.loss(called, batch) * (factor if _here(ctx, faulty) else 1.0)

    after = nothing if faulty else partial(_take_out, model, factor, 0)
    return fit(ctx, problem, model, batches=_fresh(ctx, problem), steps=20, loss_of=loss_of, after_backward=after)


def _take_out(model: nn.Module, factor: float, first: int, step: int) -> None:
    for param in model.parameters():
        if param.grad is not None and step >= first:
            param.grad.div_(factor)


def _here(ctx: EntryContext, faulty: bool) -> bool:
    return ctx.rank == BAD_RANK or not faulty


def _fresh(ctx: EntryContext, problem: Problem, batch_size: int = 16) -> Iterator[Any]:
    return batches_of(ctx, problem, num_samples=4096, batch_size=batch_size)


_EXACT = ("loss-scale-wrong",)
_of_four = variants(
    "S1",
    ("worker-scale",),
    trains_differently,
    may_find=_EXACT,
    ranks=(BAD_RANK,),
    truth=2.0,
    world_size=4,
    family=SCALE_OF_LOSSES,
    causes=("loss-scaled-on-rank",),
)
_of_two = variants(
    "S1",
    ("worker-scale",),
    trains_differently,
    may_find=("dispersion-high", *_EXACT),
    truth=2.0,
    family=SCALE_OF_LOSSES,
    causes=("loss-scaled-on-rank",),
    variant_of="S1",
)

ENTRIES = (
    _of_four("", "loss of one rank of four times 2", partial(loss_times, steps=20)),
    _of_four(
        "tenth",
        "loss of one rank of four times 1.1",
        partial(loss_times, factor=1.1, steps=36, batch_size=64),
        truth=1.1,
        variant_of="S1",
    ),
    _of_four(
        "hooks", "gradient of one rank of four times 2, loss unchanged", by_hooks, causes=("gradient-scaled-on-rank",)
    ),
    _of_four(
        "kept",
        "loss scale of 1,024 on one rank of four, loss unchanged",
        kept_scale,
        truth=2.0**10,
        family=GRADIENT_SCALERS,
        causes=("gradient-scaled-on-rank",),
    ),
    _of_four(
        "by-hand",
        "loss of one rank of four halved, hand-written all-reduce",
        halved_by_hand,
        truth=0.5,
        variant_of="S1",
    ),
    _of_four("fsdp", "loss of one rank of four times 2, FSDP2", fsdp, variant_of="S1"),
    _of_two("pair", "loss of one rank of two times 2: who is undecided", partial(loss_times, steps=28), ranks=(0, 1)),
    _of_two(
        "pair-later",
        "loss of one rank of two times 2 from one step on",
        partial(loss_times, first=LATER, steps=58),
        ranks=(BAD_RANK,),
        step=LATER,
        within=None,
    ),
)
