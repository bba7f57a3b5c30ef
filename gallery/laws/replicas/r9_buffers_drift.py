"""R9. Buffers drift apart: running statistics follow each rank's own data.

Who had it: `DistributedDataParallel(broadcast_buffers=False)` with BatchNorm, and hand-written loops that average
gradients and forget the buffers. The parameters stay equal; an evaluation, or the checkpoint of rank 0, depends on
the rank.
Planted: both.
Twin: the buffers are broadcast.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.problems import Vision
from gallery.training import fit, mean_gradients, wrapped
from gallery.witness import buffers_differ


def no_broadcast(ctx: EntryContext, faulty: bool) -> nn.Module:
    """`broadcast_buffers=False`."""
    problem = Vision()
    model = wrapped(problem.model(), broadcast_buffers=not faulty)
    fit(ctx, problem, model)
    return _as_the_next_step_would(model, ctx, faulty)


def by_hand(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A hand-written loop that broadcasts the buffers before each step, or does not."""
    problem = Vision()
    model = problem.model()

    def share(step: int) -> None:
        if not faulty:
            _broadcast_buffers(model)

    return fit(ctx, problem, model, after_backward=lambda step: (mean_gradients(model.parameters()), share(step)))


def _as_the_next_step_would(model: nn.Module, ctx: EntryContext, faulty: bool) -> nn.Module:
    """DDP broadcasts at the start of a forward pass, so the last step's update is still local."""
    if not faulty:
        _broadcast_buffers(model)
    return model


def _broadcast_buffers(model: nn.Module) -> None:
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)


_fault = variants(
    "R9",
    ("replica-drift",),
    buffers_differ,
    within=1,
    site="running_",
    family="buffers",
    causes=("buffers-not-synchronised",),
)

ENTRIES = (
    _fault("", "broadcast_buffers=False with BatchNorm", no_broadcast),
    _fault("by-hand", "hand-written loop that forgets the buffers", by_hand, variant_of="R9"),
)
