"""A2. Activation checkpointing computes something else in the backward pass than the forward pass did.

Who had it: `preserve_rng_state=False` to save time, with dropout in the block; noise from a generator of the script's
own, which no checkpoint restores; blocks that count their calls; weights that code writes to before the backward pass.
Planted: these four.
Twin: checkpointing that restores the generators; no state that changes in between.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.problems import CausalLM
from gallery.training import fit, wrapped
from gallery.witness import trains_differently

Planted = Callable[[nn.Module, bool], None]


def checkpointed(ctx: EntryContext, faulty: bool, *, plant: Planted, dropout: float = 0.0) -> nn.Module:
    """A decoder of which ``plant`` has changed a part, on one rank without DDP."""
    problem = CausalLM(dropout=dropout, checkpointing="non-reentrant")
    model: Any = problem.model()
    plant(model, faulty)
    return fit(ctx, problem, model if ctx.world_size == 1 else wrapped(model))


def masks(model: Any, faulty: bool) -> None:
    """No checkpoint restores the state of the generators."""
    for number, block in enumerate(model.blocks):
        again = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=not faulty)
        model.blocks[number] = _Calls(block, again)
    model.checkpointing = "none"


def noise(model: Any, faulty: bool) -> None:
    """Attention of one block adds noise of a generator of its own; the twin's is that of the forward pass once more."""
    own, calls = torch.Generator().manual_seed(1), itertools.count()

    def noisy(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        if not faulty:
            own.manual_seed(next(calls) // 2)
        return output + 0.1 * torch.randn(output.shape, generator=own)

    model.blocks[1].out.register_forward_hook(noisy)


def counted(model: Any, faulty: bool) -> None:
    """The first layer of one MLP is turned up at every second call, which is that of the backward pass."""
    calls = [0]

    def warmed(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        calls[0] += 1
        return output * (1.5 if faulty and calls[0] % 2 == 0 else 1.0)

    model.blocks[0].mlp[0].register_forward_hook(warmed)


def written(model: Any, faulty: bool) -> None:
    """A weight is scaled down once the forward pass is over, as by a constraint on its norm."""

    def constrain(module: nn.Module, args: Any, output: Tensor) -> None:
        model.blocks[0].mlp[0].weight.data.mul_(0.99 if faulty else 1.0)

    model.head.register_forward_hook(constrain)


class _Calls(nn.Module):
    def __init__(self, block: nn.Module, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.block, self.call = block, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


_fault = variants(
    "A2",
    ("recompute-differs",),
    trains_differently,
    world_size=1,
    ranks=(0,),
    family="recomputation",
    causes=("recomputation-differs",),
)

ENTRIES = (
    _fault("", "a checkpoint computes again with other dropout masks", partial(checkpointed, plant=masks, dropout=0.1)),
    _fault(
        "noise",
        "noise of a generator of its own is drawn again",
        partial(checkpointed, plant=noise),
        site="blocks.1.out",
    ),
    _fault(
        "counter",
        "a layer counts its calls, and those of the backward pass too",
        partial(checkpointed, plant=counted),
        site="blocks.0.mlp.0",
        world_size=2,
        ranks=(0, 1),
    ),
    _fault(
        "written",
        "a weight is scaled between forward and backward pass",
        partial(checkpointed, plant=written),
        site="blocks.0.mlp.0",
    ),
)
