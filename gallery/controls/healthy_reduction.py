"""Healthy ways to reduce: buckets, hooks, accumulation, unused parameters, hand-written loops, FSDP2."""

from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.nn import functional

from gallery.entry import Control
from gallery.entry_context import EntryContext
from gallery.laws.reduction.r7_unused_branch import Branched
from gallery.problems import CausalLM, Regression
from gallery.sharding import hybrid_mesh, sharded
from gallery.training import (
    STEPS,
    adamw,
    batches_of,
    fit,
    fit_accumulating,
    mean_each_gradient,
    mean_gradients,
    sgd,
    wrapped,
)

CAN_SUM = hasattr(FSDPModule, "set_force_sum_reduction_for_comms")
"""FSDP2 of older torch cannot sum over gloo."""


def with_ddp(ctx: EntryContext, **settings: Any) -> nn.Module:
    """Plain DDP with ``settings``."""
    problem = CausalLM()
    model = wrapped(problem.model(), **settings)
    return fit(ctx, problem, model)


def with_hook(
    ctx: EntryContext, hook: Any, *, state: Any = None, watched_first: bool = False, **settings: Any
) -> nn.Module:
    """DDP with a communication hook, registered before watching begins, or after it with ``watched_first``."""
    problem = CausalLM()
    model = wrapped(problem.model(), **settings)
    optimizer = adamw(model)
    watch = ctx.watch(model, optimizer) if watched_first else None
    model.register_comm_hook(state, hook)
    return fit(ctx, problem, model, optimizer=optimizer, watch=watch)


def bf16_hook(ctx: EntryContext) -> nn.Module:
    """What `bf16_compress_hook` does (that one insists on NCCL), in a function of the user's own."""

    def reduce(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        small = bucket.buffer().bfloat16().div_(ctx.world_size)
        summed = dist.all_reduce(small, async_op=True).get_future()
        return summed.then(lambda done: bucket.buffer().copy_(done.value()[0]))

    return with_hook(ctx, reduce)


def power_sgd(ctx: EntryContext, *, watched_first: bool = False) -> nn.Module:
    """PowerSGD from the third step on: lossy, and meant to be.

    One bucket: on gloo the hook's nested all-reduces of several buckets meet in different orders and hang.
    """
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
    hook = powerSGD_hook.powerSGD_hook
    return with_hook(ctx, hook, state=state, watched_first=watched_first, bucket_cap_mb=25)


def weighted_mean_hook(ctx: EntryContext) -> nn.Module:
    """A hook of the user's own that computes the plain mean in float64."""

    def reduce(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        wide = bucket.buffer().double()
        summed = dist.all_reduce(wide, async_op=True).get_future()
        return summed.then(lambda done: bucket.buffer().copy_(done.value()[0] / ctx.world_size))

    return with_hook(ctx, reduce)


def accumulation(ctx: EntryContext, *, every_micro: bool = False, **settings: Any) -> nn.Module:
    """Three micro-steps a step, reduced at the last one or at each."""
    problem = CausalLM()
    model = wrapped(problem.model(), **settings)
    return fit_accumulating(ctx, problem, model, num_micro=3, syncs=lambda step, micro: every_micro or micro == 2)


def unused_everywhere(ctx: EntryContext) -> nn.Module:
    """A branch that no rank ever uses."""
    return _branched(ctx, lambda step, rank: False)


def unused_here_and_there(ctx: EntryContext) -> nn.Module:
    """A branch that some ranks use at some steps, as a router would have it."""
    return _branched(ctx, lambda step, rank: (step + rank) % 3 != 0)


def by_hand(ctx: EntryContext) -> nn.Module:
    """A hand-written loop that averages parameter by parameter."""
    problem = CausalLM()
    model = problem.model()
    return fit(ctx, problem, model, after_backward=lambda step: mean_each_gradient(model.parameters()))


def summed_by_hand(ctx: EntryContext) -> nn.Module:
    """A hand-written all-reduce that sums, of losses that were divided before."""
    problem = Regression()
    model = problem.model()

    def reduce(step: int) -> None:
        for param in model.parameters():
            dist.all_reduce(param.grad)

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        return problem.loss(called, batch) / ctx.world_size

    return fit(ctx, problem, model, loss_of=loss_of, after_backward=reduce)


def flattened_by_hand(ctx: EntryContext) -> nn.Module:
    """A hand-written all-reduce of one flat copy, accumulated over two micro-steps."""
    problem = Regression()
    model = problem.model()
    optimizer, batches = sgd(model), batches_of(ctx, problem)
    watch = ctx.watch(model, optimizer)
    for _ in range(STEPS):
        micros = [next(batches), next(batches)]
        with watch.step(micros):
            losses = [problem.loss(model, batch) / 2 for batch in micros]
            for loss, batch in zip(losses, micros, strict=True):
                watch.loss(2 * loss.detach(), problem.tokens(batch))
                loss.backward()
            mean_gradients(model.parameters())
            optimizer.step()
            optimizer.zero_grad()
        ctx.note(micros, sum(loss.item() for loss in losses))
    watch.close()
    return model


def fsdp(ctx: EntryContext, *, hybrid: bool = False, **settings: Any) -> nn.Module:
    """FSDP2 over all ranks, or as two replicas of halves."""
    problem = CausalLM()
    model = sharded(problem.model(), hybrid_mesh(ctx.world_size) if hybrid else None, **settings)
    return fit(ctx, problem, model, after_backward=lambda step: nn.utils.clip_grad_norm_(model.parameters(), 1.0))


def fsdp_bf16(ctx: EntryContext) -> nn.Module:
    """FSDP2 that computes in bf16 and reduces in fp32."""
    return fsdp(ctx, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def fsdp_sum(ctx: EntryContext) -> nn.Module:
    """FSDP2 told to sum, of losses that were divided before: the recipe for token-weighted averaging."""
    problem = CausalLM()
    model = sharded(problem.model())
    for module in (model, *model.blocks):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no pre-multiplied sum

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        return problem.loss(called, batch) / ctx.world_size

    return fit(ctx, problem, model, loss_of=loss_of)


def two_passes(ctx: EntryContext) -> nn.Module:
    """Two forward passes over each batch in a step, as for two views or a consistency term."""
    problem = CausalLM(dropout=0.1)

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        return (problem.loss(called, batch) + problem.loss(called, batch)) / 2

    return fit(ctx, problem, loss_of=loss_of)


def data_parallel_pairs(ctx: EntryContext) -> nn.Module:
    """Two data-parallel groups side by side, as under tensor parallelism: ranks of a column share their batches."""
    problem = CausalLM()
    columns = [dist.new_group([first, first + ctx.world_size // 2]) for first in range(ctx.world_size // 2)]
    group = columns[ctx.rank % (ctx.world_size // 2)]
    model = wrapped(problem.model(), process_group=group)
    optimizer = adamw(model)
    watch = ctx.watch(model, optimizer, process_group=group)
    line = EntryContext(ctx.rank // 2, ctx.world_size // 2)
    return fit(ctx, problem, model, optimizer=optimizer, batches=batches_of(line, problem), watch=watch)


def fsdp_accumulation(ctx: EntryContext) -> nn.Module:
    """FSDP2 with two micro-steps a step, of which the last one reduces."""
    problem = CausalLM()
    model = sharded(problem.model())
    optimizer, batches = adamw(model), batches_of(ctx, problem)
    watch = ctx.watch(model, optimizer)
    for _ in range(STEPS):
        micros = [next(batches), next(batches)]
        with watch.step(micros):
            total = 0.0
            for micro, batch in enumerate(micros):
                model.set_requires_gradient_sync(micro == 1)
                loss = problem.loss(model, batch) / 2
                watch.loss(2 * loss.detach(), problem.tokens(batch))
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
        ctx.note(micros, total)
    watch.close()
    return model


def _branched(ctx: EntryContext, uses: Any) -> nn.Module:
    problem, steps = Regression(), count()
    model = wrapped(Branched(), find_unused_parameters=True)

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        output_BC = called(batch["x"], uses(next(steps), ctx.rank))
        return functional.mse_loss(output_BC, batch["y"])

    return fit(ctx, problem, model, loss_of=loss_of)


def local_steps(ctx: EntryContext) -> nn.Module:
    """Local SGD by hand: each rank updates by itself, and every fourth update is followed by a mean of the weights."""
    problem = Regression()
    model = problem.model()

    def average(step: int) -> None:
        if step % 4 == 3:
            for param in model.parameters():
                dist.all_reduce(param.data)
                param.data.div_(ctx.world_size)

    return fit(ctx, problem, model, steps=28, after_step=average)


def own_tasks(ctx: EntryContext) -> nn.Module:
    """Ranks of two tasks share a trunk; each task has a head of its own."""
    problem = Regression()
    model = wrapped(_Tasks(), find_unused_parameters=True)

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        return functional.mse_loss(called(batch["x"], ctx.rank % 2), batch["y"])

    return fit(ctx, problem, model, loss_of=loss_of)


class _Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        base = Regression().model()
        self.trunk = base[:4]
        self.heads = nn.ModuleList([base[4], Regression().model(seed=1)[4]])

    def forward(self, x_BD: Tensor, task: int) -> Tensor:
        """The output of one head."""
        return self.heads[task](self.trunk(x_BD))


ENTRIES = (
    Control("healthy.local-steps", "local SGD by hand", local_steps),
    Control("healthy.own-tasks", "ranks with tasks and heads of their own", own_tasks, world_size=4),
    Control("healthy.ddp", "DDP, several buckets", with_ddp),
    Control("healthy.one-bucket", "DDP, one bucket", partial(with_ddp, bucket_cap_mb=25)),
    Control("healthy.bucket-view", "DDP, gradient_as_bucket_view", partial(with_ddp, gradient_as_bucket_view=True)),
    Control("healthy.static-graph", "DDP, static_graph", partial(with_ddp, static_graph=True)),
    Control("healthy.ddp-four", "DDP, four ranks", with_ddp, world_size=4),
    Control("healthy.fp16-hook", "fp16_compress_hook", partial(with_hook, hook=default_hooks.fp16_compress_hook)),
    Control("healthy.bf16-hook", "the user's own bf16 compression", bf16_hook),
    Control(
        "healthy.fp16-hook-later",
        "fp16_compress_hook registered under watch",
        partial(with_hook, hook=default_hooks.fp16_compress_hook, watched_first=True),
    ),
    Control("healthy.power-sgd", "PowerSGD", power_sgd),
    Control("healthy.power-sgd-later", "PowerSGD registered under watch", partial(power_sgd, watched_first=True)),
    Control("healthy.own-hook", "the user's own averaging hook", weighted_mean_hook),
    Control("healthy.no-sync", "accumulation under no_sync", accumulation),
    Control(
        "healthy.no-sync-view",
        "accumulation under no_sync into bucket views",
        partial(accumulation, gradient_as_bucket_view=True),
    ),
    Control("healthy.sync-always", "accumulation reduced at every micro-step", partial(accumulation, every_micro=True)),
    Control("healthy.unused", "parameters unused on all ranks", unused_everywhere),
    Control("healthy.unused-some", "parameters unused on some ranks at some steps", unused_here_and_there),
    Control("healthy.by-hand", "hand-written all-reduce of each parameter", by_hand),
    Control("healthy.sum", "hand-written sum of pre-divided losses", summed_by_hand),
    Control("healthy.flat", "hand-written flat all-reduce with accumulation", flattened_by_hand),
    Control("healthy.fsdp", "FSDP2", fsdp),
    Control("healthy.two-passes", "two forward passes a step", two_passes),
    Control("healthy.dp-pairs", "two data-parallel groups side by side", data_parallel_pairs, world_size=4),
    Control("healthy.hsdp", "HSDP", partial(fsdp, hybrid=True), world_size=4),
    Control("healthy.fsdp-bf16", "FSDP2 in bf16, reduced in fp32", fsdp_bf16),
    Control("healthy.fsdp-micro", "FSDP2 with accumulation", fsdp_accumulation),
    *([Control("healthy.fsdp-sum", "FSDP2 told to sum pre-divided losses", fsdp_sum)] if CAN_SUM else []),
)
