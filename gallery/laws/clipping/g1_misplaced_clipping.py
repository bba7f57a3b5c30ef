"""G1. Clipping or unscaling happens at the wrong place.

Who had it: graphstorm#1366 and VGRNN#4 (clipped after the update), nano-world-model#22 (before the backward pass),
accelerate#113 (unscaled twice), scripts that clip the head alone, or multiply gradients after clipping them.
Planted: each of these.
Twin: clipped once, between the backward pass and the update.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import CLIPPING, GRADIENT_SCALERS
from gallery.problems import CausalLM, Regression
from gallery.training import fit, sgd, wrapped
from gallery.witness import trains_differently

MAX_NORM = 0.1


def too_late(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Clipped after the update, before gradients are cleared."""
    model = Regression().model()
    optimizer = sgd(model)

    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)

    if faulty:
        optimizer.register_step_post_hook(clip)
        return fit(ctx, Regression(), model, optimizer=optimizer)
    return fit(ctx, Regression(), model, optimizer=optimizer, after_backward=clip)


class _Kept(torch.optim.SGD):
    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none=False)


def too_early(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Clipped before the backward pass, where gradients are still zeros."""
    problem = Regression()
    model = problem.model()
    optimizer = _Kept(model.parameters(), lr=0.05)

    def clip(step: int = 0) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        loss = problem.loss(called, batch)
        if faulty:
            clip()
        return loss

    after = {} if faulty else {"after_backward": clip}
    return fit(ctx, problem, model, optimizer=optimizer, loss_of=loss_of, **after)


def head_alone(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Only the gradients of the last layer are clipped."""
    model: Any = Regression().model()
    params = list((model[4] if faulty else model).parameters())
    return fit(ctx, Regression(), model, after_backward=lambda step: nn.utils.clip_grad_norm_(params, MAX_NORM))


def multiplied(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Gradients are multiplied by the number of ranks after they were clipped."""
    model = wrapped(Regression().model())

    def clip(step: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        for param in model.parameters() if faulty else ():
            param.grad *= ctx.world_size

    return fit(ctx, Regression(), model, after_backward=clip)


def unscaled_twice(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Gradients are divided by the loss scale by hand, and by the scaler."""
    model = wrapped(Regression().model())
    scaler = GradScaler("cpu", init_scale=16.0, growth_interval=100)

    def unscale(step: int) -> None:
        for param in model.parameters() if faulty else ():
            param.grad /= scaler.get_scale()

    return fit(ctx, Regression(), model, optimizer=sgd(model), scaler=scaler, after_backward=unscale)


def never_unscaled(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The loss is scaled, and the optimizer is stepped without the scaler."""
    problem = CausalLM()
    scaler = GradScaler("cpu", init_scale=16.0)

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        loss = problem.loss(model, batch)
        return scaler.scale(loss) if faulty else loss

    return fit(ctx, problem, problem.model(), loss_of=loss_of)


_fault = variants(
    "G1",
    ("clip-differs",),
    trains_differently,
    ranks=(0,),
    world_size=1,
    may_find=("norm-misreported",),
    family=CLIPPING,
    causes=("clipped-at-another-time",),
)

ENTRIES = (
    _fault("", "gradients are clipped after the update", too_late),
    _fault("early", "gradients are clipped before the backward pass", too_early, causes=("clipped-nothing",)),
    _fault("head", "only the head is clipped", head_alone),
    _fault(
        "multiplied",
        "clipped gradients are multiplied by the number of ranks",
        multiplied,
        may_find=("norm-misreported", "reduction-mismatch"),
        must_find=("reduction-mismatch|clip-differs",),
        world_size=2,
        ranks=(0, 1),
        causes=("clipped-at-another-time", "reduction-scaled", "not-divided"),
    ),
    _fault(
        "unscaled-twice",
        "gradients are unscaled twice",
        unscaled_twice,
        must_find=("reduction-mismatch|loss-scale-wrong",),
        world_size=2,
        ranks=(0, 1),
        family=GRADIENT_SCALERS,
        causes=("gradients-unscaled-wrongly",),
    ),
    _fault(
        "never-unscaled",
        "the scaler scales and never unscales",
        never_unscaled,
        must_find=("loss-scale-wrong",),
        family=GRADIENT_SCALERS,
        causes=("gradients-unscaled-wrongly",),
    ),
)
