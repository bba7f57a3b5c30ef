"""E1. The average of the weights (EMA, a momentum teacher) is another one: only what is evaluated with it shows it.

Who had it: hand-written loops that give the update another model, that swap the decay with
its complement, that go through one part of the model, or that average in the precision of the model.
Planted: these four.
Twin: the same loop, right.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.problems import CausalLM
from gallery.training import fit, usual_optimizer, wrapped
from gallery.witness import trains_differently

DECAY = 0.99


def follow(average: nn.Module, model: nn.Module, decay: float = DECAY) -> None:
    """What an exponential average does after each update."""
    with torch.no_grad():
        for e, p in zip(average.parameters(), model.parameters(), strict=True):
            e.mul_(decay).add_(p, alpha=1 - decay)


def averaged(
    ctx: EntryContext,
    update: Callable[[nn.Module, nn.Module], None],
    *,
    decay: float | None = None,
    dtype: torch.dtype = torch.float32,
    declares: bool = True,
) -> nn.Module:
    """A language model and its average, which ``update(average, model)`` follows; ``decay`` is declared, or not even
    the average.
    """
    problem = CausalLM()
    model = wrapped(problem.model())
    base = model.module
    average = copy.deepcopy(base).to(dtype)
    optimizer = usual_optimizer(problem, model)
    declared = [(average, base, *([] if decay is None else [decay]))] if declares else []
    watch = ctx.watch(model, optimizer, averages=declared)
    fit(ctx, problem, model, optimizer=optimizer, watch=watch, after_step=lambda step: update(average, base))
    return nn.ModuleDict({"model": base, "average": average})


def stale(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The average follows a model of another initialisation, which is not trained."""
    other = CausalLM().model(seed=3)
    return averaged(ctx, lambda average, model: follow(average, other if faulty else model))


def swapped(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The decay is given to the model's part."""
    return averaged(ctx, lambda average, model: follow(average, model, 1 - DECAY if faulty else DECAY), decay=DECAY)


def without_blocks(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The loop goes through the embedding and the head, and not through the blocks."""

    def update(average: nn.Module, model: nn.Module) -> None:
        if not faulty:
            return follow(average, model)
        for (name, part), other in zip(average.named_children(), model.children(), strict=True):
            if name != "blocks":
                follow(part, other)
        return None

    return averaged(ctx, update)


def rounded(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The average is kept in bfloat16."""
    dtype = torch.bfloat16 if faulty else torch.float32
    return averaged(ctx, follow, decay=DECAY, dtype=dtype)


def rounded_unseen(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The same, where nobody says that there is an average."""
    return averaged(ctx, follow, dtype=torch.bfloat16 if faulty else torch.float32, declares=False)


_fault = variants(
    "E1", ("average-differs",), trains_differently, family="averages of weights", causes=("average-lost-in-rounding",)
)

ENTRIES = (
    _fault(
        "",
        "the average of the weights follows another model than the one that is trained",
        stale,
        causes=("average-of-other-weights",),
    ),
    _fault(
        "swapped",
        "decay and complement of the average of the weights are swapped",
        swapped,
        within=2,
        causes=("average-decay-wrong",),
    ),
    _fault(
        "part",
        "the average of the weights leaves out the blocks of the model",
        without_blocks,
        causes=("average-not-updated",),
    ),
    _fault("bf16", "the average of the weights is kept in bfloat16 and loses what it is to follow", rounded, within=4),
    _fault(
        "found",
        "an average in bfloat16 that is not declared loses what it is to follow",
        rounded_unseen,
        within=8,
        variant_of="E1.bf16",
    ),
)
