"""S5. One worker's gradient points elsewhere, though its loss is like the others'.

Who had it: a sign lost in a hand-written backward or a gradient-reversal layer that one rank builds, accelerators that
compute wrong bits now and then, a layer of one rank in another precision. The loss does not show it, for the forward
pass is right; a flipped sign cancels a healthy worker at every step.
Planted: all gradients of one rank times -1; noise as long as the gradient added to all of it, or to one layer alone.
Twin: hooks that leave the gradient as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import GRADIENTS_OF_ONE_RANK
from gallery.problems import CausalLM
from gallery.training import batches_of, fit, wrapped
from gallery.witness import trains_differently

BAD_RANK = 3
Turn = Callable[[Tensor], Tensor]


def flipped(gradient: Tensor) -> Tensor:
    """The gradient with its sign lost."""
    return -gradient


def noisy(gradient: Tensor) -> Tensor:
    """The gradient under noise of its own length."""
    return gradient + gradient.norm() / gradient.numel() ** 0.5 * torch.randn_like(gradient)


def turned(ctx: EntryContext, faulty: bool, *, turn: Turn, where: str = "", steps: int = 20) -> nn.Module:
    """A causal LM under DDP; ``turn`` acts on the gradients of the parameters whose name has ``where`` in it."""
    problem = CausalLM()
    model = wrapped(problem.model())
    _hooked(model, turn if faulty and ctx.rank == BAD_RANK else _left, where)
    batches = batches_of(ctx, problem, num_samples=4096, batch_size=16)
    return fit(ctx, problem, model, batches=batches, steps=steps)


def _hooked(model: nn.Module, turn: Turn, where: str) -> None:
    for name, param in model.named_parameters():
        if where in name:
            param.register_hook(turn)


def _left(gradient: Tensor) -> Tensor:
    return gradient


EITHER = ("worker-grad-norm-outlier|worker-direction-outlier",)
ALSO = ("worker-grad-norm-outlier", "worker-direction-outlier")

_fault = variants(
    "S5",
    EITHER,
    trains_differently,
    may_find=ALSO,
    ranks=(BAD_RANK,),
    within=4,
    world_size=4,
    family=GRADIENTS_OF_ONE_RANK,
    causes=("gradient-wrong-on-rank",),
)

ENTRIES = (
    _fault(
        "",
        "gradient of one rank of four has lost its sign",
        partial(turned, turn=flipped),
        must_find=("worker-direction-outlier",),
    ),
    _fault("noise", "noise as long as the gradient on one rank of four", partial(turned, turn=noisy)),
    _fault(
        "layer",
        "noise as long as the gradient in one layer of one rank of four",
        partial(turned, turn=noisy, where="blocks.1"),
        site="blocks.1",
        variant_of="S5.noise",
    ),
)
