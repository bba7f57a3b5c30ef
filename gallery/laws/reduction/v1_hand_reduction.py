"""V1. A hand-written reduction does something other than average.

Who had it: loops that average gradients themselves: with another operation than a sum, without copying a flat result
back (as horovod#843 and pytorch#27806 show people guess what the call does), with the size of the node as divisor.
Planted: each of these at every step.
Twin: one flat all-reduce, divided by the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import CORRUPTED_COLLECTIVES, DIVISORS, REDUCTIONS_LEFT_OUT
from gallery.problems import Regression
from gallery.training import fit, fit_accumulating, mean_gradients, wrapped
from gallery.witness import replicas_differ, trains_differently

Reduce = Callable[[list[Tensor]], object]


def largest(grads: list[Tensor]) -> None:
    """The largest value of any rank."""
    for grad in grads:
        dist.all_reduce(grad, op=dist.ReduceOp.MAX)


def not_copied(grads: list[Tensor]) -> None:
    """A flat copy is reduced, and the gradients stay as they are."""
    dist.all_reduce(torch.cat([grad.flatten() for grad in grads]))


def from_first(grads: list[Tensor]) -> None:
    """Rank 0 tells all others its gradient."""
    for grad in grads:
        dist.broadcast(grad, 0)


def split_elsewhere(grads: list[Tensor]) -> None:
    """The flat result is split in the order of other parameters."""
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    start = 0
    for grad in reversed(grads):
        grad.copy_(flat[start : start + grad.numel()].view_as(grad))
        start += grad.numel()


def by_node(grads: list[Tensor]) -> None:
    """The sum is divided by the ranks of a node of two."""
    for grad in grads:
        dist.all_reduce(grad)
        grad /= 2


def reduced(ctx: EntryContext, faulty: bool, *, reduce: Reduce) -> nn.Module:
    """A hand-written loop."""
    model = Regression().model()

    def after(step: int) -> None:
        if faulty:
            reduce([param.grad for param in model.parameters() if param.grad is not None])
        else:
            mean_gradients(model.parameters())

    return fit(ctx, Regression(), model, after_backward=after)


def summed_again(ctx: EntryContext, faulty: bool) -> nn.Module:
    """What DDP has averaged is added up once more by a loop that was written before DDP was used."""
    model = wrapped(Regression().model())

    def again(step: int) -> None:
        for param in model.parameters():
            dist.all_reduce(param.grad)
            if not faulty:
                param.grad /= ctx.world_size

    return fit(ctx, Regression(), model, after_backward=again)


def too_early(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Under DDP the first of two micro-batches is reduced, where it should be the last."""
    return fit_accumulating(ctx, Regression(), syncs=lambda step, micro: micro == (0 if faulty else 1))


_fault = variants(
    "V1",
    ("reduction-mismatch",),
    trains_differently,
    may_find=("replica-drift", "gradient-not-reduced"),
    ranks=(0, 1),
    family=CORRUPTED_COLLECTIVES,
    causes=("other-operation-reduced",),
)
_apart = variants(
    "V1",
    ("gradient-not-reduced",),
    replicas_differ,
    may_find=("replica-drift",),
    ranks=(0, 1),
    family=REDUCTIONS_LEFT_OUT,
    causes=("no-all-reduce",),
)

ENTRIES = (
    _fault("", "the largest gradient is taken in place of the mean", partial(reduced, reduce=largest)),
    _fault("from-first", "rank 0 broadcasts its gradient", partial(reduced, reduce=from_first)),
    _fault(
        "elsewhere",
        "a flat gradient is split at other places",
        partial(reduced, reduce=split_elsewhere),
        causes=("reduced-gradient-misplaced",),
    ),
    _fault(
        "by-node",
        "a sum over four ranks is divided by two",
        partial(reduced, reduce=by_node),
        ranks=(0, 1, 2, 3),
        world_size=4,
        family=DIVISORS,
        causes=("not-divided", "reduction-scaled"),
    ),
    _fault(
        "again",
        "the mean of DDP is summed again",
        summed_again,
        family=DIVISORS,
        causes=("not-divided", "reduction-scaled"),
    ),
    _apart("not-copied", "a flat copy is reduced and not copied back", partial(reduced, reduce=not_copied)),
    _apart("early", "the first micro-batch is reduced in place of the last", too_early, causes=("no-sync-at-update",)),
)
