"""R3. Now and then, on one rank, the result of an all-reduce is zeros.

Who had it: P#84803 and its family (P#69522, NCCL#1950: an all-reduce gives wrong or missing values on some ranks).
One bucket of one step is lost on one rank; from then on the replicas differ a little, and nothing fails.
Planted: behind a DDP communication hook; in a hand-written all-reduce; in FSDP2's reduce-scatter; as noise, as the
rank's own gradient, and as a lost tail instead of zeros.
Twin: the same hook without the accident.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import CORRUPTED_COLLECTIVES
from gallery.problems import CausalLM, Regression
from gallery.sharding import reduce_scatter_then, sharded
from gallery.training import adamw, fit, mean_gradients, wrapped
from gallery.witness import replicas_differ, trains_differently

TRIGGER = 7
UNLUCKY_RANK = 1

Damage = Callable[[Tensor, Tensor], object]
"""Spoils, in place, the reduced values, given also the local ones."""


def zeros(reduced: Tensor, local: Tensor) -> None:
    """Everything is lost."""
    del local
    reduced.zero_()


def tail(reduced: Tensor, local: Tensor) -> None:
    """The last eight values are lost, as in NCCL#1950."""
    del local
    reduced[-8:].zero_()


def own(reduced: Tensor, local: Tensor) -> None:
    """The rank keeps its own gradient."""
    reduced.copy_(local)


def noise(reduced: Tensor, local: Tensor) -> None:
    """Values from somewhere else, of the same size."""
    del local
    reduced.copy_(torch.randn_like(reduced) * reduced.std())


def behind_hook(damage: Damage, *, watched_first: bool = False) -> Callable[[EntryContext, bool], nn.Module]:
    """Training under DDP with an averaging hook whose second bucket meets ``damage`` once.

    The hook is registered before watching begins, or after it with ``watched_first``.
    """

    def train(ctx: EntryContext, faulty: bool) -> nn.Module:
        problem = CausalLM()
        model = wrapped(problem.model())
        optimizer = adamw(model)
        watch = ctx.watch(model, optimizer) if watched_first else None
        model.register_comm_hook(_Backward(damage if faulty and ctx.rank == UNLUCKY_RANK else None), average)
        return fit(ctx, problem, model, optimizer=optimizer, watch=watch)

    return train


def by_hand(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A hand-written loop in which one parameter's all-reduce comes back as zeros."""
    problem = Regression()
    model = problem.model()

    def reduce(step: int) -> None:
        mean_gradients(model.parameters())
        if faulty and ctx.rank == UNLUCKY_RANK and step == TRIGGER:
            model[2].weight.grad.zero_()

    return fit(ctx, problem, model, after_backward=reduce)


def fsdp(ctx: EntryContext, faulty: bool) -> nn.Module:
    """FSDP2 whose reduce-scatter of the first block comes back as zeros."""
    problem = CausalLM()
    model = sharded(problem.model())
    calls = iter(range(1000))

    def spoil(shard: Tensor) -> None:
        if next(calls) == TRIGGER and faulty and ctx.rank == UNLUCKY_RANK:
            shard.zero_()

    model.blocks[0].set_custom_reduce_scatter(reduce_scatter_then(spoil))
    return fit(ctx, problem, model)


class _Backward:
    """Which backward pass a hook is in, and what happens to its second bucket in the eighth."""

    def __init__(self, accident: Damage | None) -> None:
        self.count, self.accident = 0, accident


def average(state: _Backward, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The plain mean over the ranks, as a communication hook."""
    local = bucket.buffer().clone()
    unlucky = state.accident if state.count == TRIGGER and bucket.index() == 1 else None
    state.count += bucket.is_last()
    summed = dist.all_reduce(bucket.buffer(), async_op=True).get_future()

    def finish(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        reduced = done.value()[0].div_(dist.get_world_size())
        if unlucky is not None:
            unlucky(reduced, local)
        return reduced

    return summed.then(finish)


def by_hand_four(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A hand-written loop on four ranks, where rank 2 keeps a stale value of one parameter's gradient."""
    problem = CausalLM()
    model = problem.model()
    before: list[Tensor] = []

    def reduce(step: int) -> None:
        mean_gradients(model.parameters())
        gradient = model.blocks[0].qkv.weight.grad
        if faulty and ctx.rank == 2 and step == TRIGGER:
            gradient.copy_(before[-1])
        before.append(gradient.clone())

    return fit(ctx, problem, model, after_backward=reduce)


_fault = variants(
    "R3",
    ("reduction-mismatch",),
    replicas_differ,
    may_find=("replica-drift", "gradient-not-reduced"),
    ranks=(UNLUCKY_RANK,),
    step=TRIGGER,
    family=CORRUPTED_COLLECTIVES,
    causes=("collective-corrupted",),
)

ENTRIES = (
    _fault("", "all-reduce zeroed on one rank, DDP hook", behind_hook(zeros)),
    _fault("tail", "tail of an all-reduce lost on one rank", behind_hook(tail)),
    _fault("own", "one rank keeps its own gradient in one bucket", behind_hook(own)),
    _fault("noise", "one rank gets foreign values in one bucket", behind_hook(noise)),
    _fault(
        "watched-first",
        "all-reduce zeroed on one rank, hook registered under watch",
        behind_hook(zeros, watched_first=True),
        variant_of="R3",
    ),
    _fault("by-hand", "hand-written all-reduce zeroed on one rank", by_hand, variant_of="R3"),
    _fault("stale", "stale all-reduce result on one rank of four", by_hand_four, ranks=(2,), world_size=4),
    _fault(
        "fsdp", "FSDP2 reduce-scatter zeroed on one rank", fsdp, shows=trains_differently, ranks=None, variant_of="R3"
    ),
)
