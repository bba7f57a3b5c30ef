"""R5. Gradient clipping acts on one rank only, or differently on each.

Who had it: DeepSpeed#1801 (BLOOM: clipping was applied on part of the ranks only, and layer norms drifted apart),
SpecForge#663 (each rank clips by its own norm). The reduction is right; what differs is what the optimizer is given.
Planted: `if rank == 0: clip_grad_norm_`; a clip after the reduction by a norm taken before it; another threshold on
one rank of four.
Twin: the same clipping on all ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import CLIPPING
from gallery.problems import CausalLM, Regression
from gallery.training import fit, mean_gradients, wrapped
from gallery.witness import replicas_differ

MAX_NORM = 0.1
"""Below the gradient norms of both problems, so that clipping acts at every step."""


def on_rank_0(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The call sits under `if rank == 0`."""
    problem = CausalLM()
    model = wrapped(problem.model())

    def clip(step: int) -> None:
        if ctx.rank == 0 or not faulty:
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)

    return fit(ctx, problem, model, after_backward=clip)


def by_local_norm(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A hand-written loop that measures the norm before the all-reduce and clips after it."""
    problem = Regression()
    model = problem.model()

    def reduce_and_clip(step: int) -> None:
        before = _norm(model)
        mean_gradients(model.parameters())
        scale = MAX_NORM / max(MAX_NORM, before if faulty else _norm(model))
        for param in model.parameters():
            param.grad.mul_(scale)

    return fit(ctx, problem, model, after_backward=reduce_and_clip)


def other_threshold(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Rank 3 of four was started with another `--clip-grad`."""
    problem = Regression()
    model = wrapped(problem.model())
    max_norm = MAX_NORM / 2 if faulty and ctx.rank == 3 else MAX_NORM
    return fit(ctx, problem, model, after_backward=lambda step: nn.utils.clip_grad_norm_(model.parameters(), max_norm))


def _norm(model: nn.Module) -> float:
    grads: list[Tensor] = [param.grad.flatten() for param in model.parameters()]
    return float(torch.cat(grads).norm())


_fault = variants(
    "R5",
    ("replica-drift",),
    replicas_differ,
    may_find=("clip-differs", "gradient-not-reduced", "reduction-mismatch"),
    ranks=(0, 1),
    within=1,
    family=CLIPPING,
    causes=("clipped-on-some-ranks",),
)

ENTRIES = (
    _fault("", "clipping on one rank only", on_rank_0),
    _fault("local-norm", "reduced gradient clipped by the local norm", by_local_norm, causes=("clipped-by-own-norm",)),
    _fault("threshold", "another clipping threshold on one rank of four", other_threshold, ranks=(3,), world_size=4),
)
