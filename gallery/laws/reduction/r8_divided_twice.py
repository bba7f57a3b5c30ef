"""R8. The reduced gradient is divided by the world size twice, or not at all.

Who had it: communication hooks that divide before a reduction which divides again, and loops that divide after DDP
has done it. The ranks agree with each other and the loss falls, only N times too slowly (or too fast).
Planted: in a DDP hook; after DDP; in a hand-written all-reduce; in a hook that forgot to divide; in one bucket only.
Twin: divided once.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import DIVISORS
from gallery.problems import CausalLM, Regression
from gallery.sharding import reduce_scatter_then, sharded
from gallery.training import fit, mean_gradients, wrapped
from gallery.witness import trains_differently


def in_hook(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The hook divides, then calls torch's hook, which divides."""

    def reduce(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        if faulty:
            bucket.buffer().div_(ctx.world_size)
        return allreduce_hook(None, bucket)

    return _with_hook(ctx, reduce)


def not_divided(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The hook sums and returns the sum."""

    def reduce(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        summed = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return summed.then(lambda done: done.value()[0].div_(1 if faulty else ctx.world_size))

    return _with_hook(ctx, reduce)


def in_one_bucket(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Only the first bucket is divided twice."""

    def reduce(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        if faulty and bucket.index() == 0:
            bucket.buffer().div_(ctx.world_size)
        return allreduce_hook(None, bucket)

    return _with_hook(ctx, reduce)


def in_reduce_scatter(ctx: EntryContext, faulty: bool) -> nn.Module:
    """FSDP2 with a reduce-scatter of the user's own that divides what the default one has averaged."""
    problem = CausalLM()
    model = sharded(problem.model())

    def divide(shard: Tensor) -> None:
        shard.div_(ctx.world_size if faulty else 1)

    for module in (model, *model.blocks):
        module.set_custom_reduce_scatter(reduce_scatter_then(divide))
    return fit(ctx, problem, model)


def after_ddp(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The loop divides what DDP has averaged."""
    problem = Regression()
    model = wrapped(problem.model())

    def divide(step: int) -> None:
        if faulty:
            for param in model.parameters():
                param.grad.div_(ctx.world_size)

    return fit(ctx, problem, model, after_backward=divide)


def by_hand(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A hand-written average, averaged again."""
    problem = Regression()
    model = problem.model()

    def reduce(step: int) -> None:
        mean_gradients(model.parameters())
        if faulty:
            for param in model.parameters():
                param.grad.div_(ctx.world_size)

    return fit(ctx, problem, model, after_backward=reduce)


def _with_hook(ctx: EntryContext, reduce: Callable[..., torch.futures.Future[Tensor]]) -> nn.Module:
    problem = CausalLM()
    model = wrapped(problem.model())
    model.register_comm_hook(None, reduce)
    return fit(ctx, problem, model)


_fault = variants(
    "R8", ("reduction-mismatch",), trains_differently, family=DIVISORS, causes=("divided-twice",), variant_of="R8"
)

ENTRIES = (
    _fault("", "divided twice in a DDP hook", in_hook),
    _fault("sum", "not divided in a DDP hook", not_divided, causes=("not-divided",), variant_of=""),
    _fault("one-bucket", "one bucket divided twice in a DDP hook", in_one_bucket),
    _fault("after-ddp", "divided again after DDP", after_ddp, variant_of=""),
    _fault("by-hand", "divided twice in a hand-written all-reduce", by_hand),
    _fault("fsdp", "divided twice in an FSDP2 reduce-scatter", in_reduce_scatter),
    _fault("four", "divided twice in a DDP hook, four ranks", in_hook, world_size=4),
)
