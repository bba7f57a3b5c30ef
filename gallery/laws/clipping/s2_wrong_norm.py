"""S2. Gradients are clipped by a norm that is not theirs.

Who had it: clipping by the norm of a shard (pytorch#149768 and its family: too small by the root of the number of
shards); clipping before ``GradScaler.unscale_``.
Planted: under FSDP2 each rank's norm of its own shard; the loss scale that is still in the gradients.
Twin: the norm of the whole gradient; ``unscale_`` first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import CLIPPING
from gallery.problems import CausalLM, Regression
from gallery.sharding import sharded
from gallery.training import fit, sgd, under_autocast
from gallery.witness import trains_differently

MAX_NORM = 0.1


def of_shards(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The norm is computed from the local parts of a sharded model."""
    problem = CausalLM()
    model = sharded(problem.model())
    params: list[Any] = list(model.parameters())

    def clip(step: int) -> None:
        grads = [param.grad.to_local() if faulty else param.grad for param in params]
        nn.utils.clip_grads_with_norm_(params, MAX_NORM, nn.utils.get_total_norm(grads))

    return fit(ctx, problem, model, after_backward=clip)


def still_scaled(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Clipping comes before the scaler divides."""
    problem = Regression()
    model = problem.model()

    def clip(step: int) -> None:
        if faulty:
            nn.utils.clip_grad_norm_(model.parameters(), 10 * MAX_NORM)

    return fit(
        ctx,
        problem,
        model,
        optimizer=sgd(model),
        scaler=GradScaler("cpu", init_scale=2.0**12, growth_interval=100),
        loss_of=under_autocast(problem, torch.float16),
        clip=None if faulty else 10 * MAX_NORM,
        after_backward=clip,
    )


_fault = variants(
    "S2",
    ("norm-misreported",),
    trains_differently,
    may_find=("clip-differs", "reduction-mismatch"),
    family=CLIPPING,
    causes=("clipping-wrong",),
)

ENTRIES = (
    _fault("", "gradients are clipped by the norm of each rank's shard", of_shards, ranks=(0, 1)),
    _fault(
        "scaled",
        "gradients are clipped before they are unscaled",
        still_scaled,
        ranks=(0,),
        world_size=1,
        causes=("clipped-while-scaled",),
    ),
)
