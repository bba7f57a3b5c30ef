"""Healthy models and updates: schedules, clipping, freezing, tying, checkpointing, precision, compilation, resuming."""

from __future__ import annotations

import copy
import math
import shutil
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel

from gallery.entry import Control
from gallery.entry_context import EntryContext
from gallery.problems import CausalLM, Regression, Vision
from gallery.training import STEPS, adamw, batches_of, fit, mean_gradients, sgd, under_autocast, wrapped

CLIP = 0.1


def scheduled(ctx: EntryContext) -> nn.Module:
    """Warm-up, and a spike of the learning rate that the schedule asks for."""
    problem = CausalLM()
    model = wrapped(problem.model())
    optimizer = adamw(model)
    scheduler = LambdaLR(optimizer, lambda step: 5.0 if step == 8 else min(1.0, (step + 1) / 5))
    return fit(ctx, problem, model, optimizer=optimizer, after_step=lambda step: scheduler.step())


def frozen(ctx: EntryContext) -> nn.Module:
    """Embedding and first block frozen on purpose."""
    problem = CausalLM()
    base = problem.model()
    for part in (base.embed, base.blocks[0]):
        part.requires_grad_(False)
    model = wrapped(base)
    return fit(ctx, problem, model)


def causal_lm(ctx: EntryContext, **settings: Any) -> nn.Module:
    """A CausalLM with ``settings`` under plain DDP."""
    return fit(ctx, CausalLM(**settings))


def batch_norm(ctx: EntryContext) -> nn.Module:
    """BatchNorm under DDP, which broadcasts the buffers at the next forward pass."""
    return fit(ctx, Vision())


def autocast(ctx: EntryContext) -> nn.Module:
    """bf16 autocast on all ranks."""
    problem = CausalLM()
    loss_of = under_autocast(problem, torch.bfloat16)
    return fit(ctx, problem, loss_of=loss_of)


def pure_bf16(ctx: EntryContext, *, by_hand: bool = False) -> nn.Module:
    """Weights, gradients and reduction in bf16."""
    problem = CausalLM()
    model = problem.model().bfloat16()
    if by_hand:
        return fit(ctx, problem, model, after_backward=lambda step: mean_gradients(model.parameters()))
    model = wrapped(model)
    return fit(ctx, problem, model)


def clipped(ctx: EntryContext, *, by_value: bool = False, by_hand: bool = False) -> nn.Module:
    """Clipping on all ranks after the reduction."""
    problem = CausalLM()
    model = problem.model() if by_hand else wrapped(problem.model())

    def clip(step: int) -> None:
        if by_hand:
            mean_gradients(model.parameters())
        if by_value:
            nn.utils.clip_grad_value_(model.parameters(), CLIP / 100)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)

    return fit(ctx, problem, model, after_backward=clip)


def clipped_before(ctx: EntryContext) -> nn.Module:
    """A hand-written loop where every rank clips its own gradient before the average, as per-worker clipping does."""
    problem = Regression()
    model = problem.model()

    def clip_and_reduce(step: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        mean_gradients(model.parameters())

    return fit(ctx, problem, model, after_backward=clip_and_reduce)


def scaled(ctx: EntryContext, *, init_scale: float = 2.0**10) -> nn.Module:
    """fp16 autocast and a gradient scaler, equal on all ranks; from a scale that overflows it skips updates."""
    problem = CausalLM()
    return fit(
        ctx,
        problem,
        scaler=GradScaler("cpu", init_scale=init_scale, growth_interval=4),
        loss_of=under_autocast(problem, torch.float16),
        clip=1.0,
    )


def compiled(ctx: EntryContext, *, outside: bool = False) -> nn.Module:
    """`torch.compile` inside or around DDP; without a C++ compiler, traced and run eagerly."""
    import torch._inductor.config as inductor

    torch._dynamo.reset()
    problem = Regression()
    backend = "inductor" if shutil.which("c++") or shutil.which("g++") else "aot_eager"
    with inductor.patch(compile_threads=1):
        base = problem.model() if outside else torch.compile(problem.model(), backend=backend)
        model = wrapped(base, bucket_cap_mb=25)
        forward = torch.compile(model, backend=backend) if outside else None
        return fit(ctx, problem, model, forward=forward)


def resumed(ctx: EntryContext) -> nn.Module:
    """Six steps unwatched, then model and optimizer are loaded into new ones and a new Run begins."""
    problem = CausalLM()
    batches = batches_of(ctx, problem)
    first = wrapped(problem.model())
    optimizer = adamw(first)
    fit(
        EntryContext(ctx.rank, ctx.world_size), problem, first, optimizer=optimizer, batches=islice(batches, 6), steps=6
    )
    model = wrapped(problem.model(seed=9))
    model.load_state_dict(copy.deepcopy(first.state_dict()))
    resumed_optimizer = adamw(model)
    resumed_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return fit(ctx, problem, model, optimizer=resumed_optimizer, batches=batches)


def evaluated(ctx: EntryContext) -> nn.Module:
    """An evaluation between the steps, on rank 0 alone, through the raw module and without gradient."""
    problem = CausalLM(dropout=0.1)
    model = wrapped(problem.model())
    held_out = problem.dataset(8, seed=5)

    def evaluate(step: int) -> None:
        if ctx.rank == 0 and step % 4 == 3:
            model.eval()
            with torch.no_grad():
                problem.loss(model.module, held_out[slice(None)])
            model.train()

    return fit(ctx, problem, model, after_step=evaluate)


def averaged(ctx: EntryContext) -> nn.Module:
    """BatchNorm, a momentum teacher on a cosine schedule that runs in training mode, and torch's SWA from step 4 on."""
    problem = Vision()
    model = wrapped(problem.model())
    teacher = copy.deepcopy(model.module).requires_grad_(False)
    average = AveragedModel(model, use_buffers=True)
    optimizer = sgd(model)
    held_out = problem.dataset(8, seed=5)

    def follow(step: int) -> None:
        momentum = 1 - 0.05 * (math.cos(math.pi * step / STEPS) + 1) / 2
        with torch.no_grad():
            for e, p in zip(teacher.parameters(), model.parameters(), strict=True):
                e.data.mul_(momentum).add_((1 - momentum) * p.detach().data)
            problem.loss(teacher, held_out[slice(None)])
        if step >= 4 and step % 2:
            average.update_parameters(model)

    watch = ctx.watch(model, optimizer, averages=[teacher])
    return fit(ctx, problem, model, optimizer=optimizer, watch=watch, after_step=follow)


def single(ctx: EntryContext) -> nn.Module:
    """One process, no wrapper."""
    problem = CausalLM()
    model = problem.model()
    return fit(ctx, problem, model, steps=24)


ENTRIES = (
    Control("healthy.schedule", "warm-up and a scheduled spike of the learning rate", scheduled),
    Control("healthy.frozen", "layers frozen on purpose", frozen),
    Control("healthy.tied", "tied weights", partial(causal_lm, tied=True)),
    Control(
        "healthy.checkpoint",
        "activation checkpointing, non-reentrant",
        partial(causal_lm, checkpointing="non-reentrant", dropout=0.1),
    ),
    Control(
        "healthy.checkpoint-old",
        "activation checkpointing, reentrant",
        partial(causal_lm, checkpointing="reentrant", dropout=0.1),
    ),
    Control("healthy.batch-norm", "BatchNorm with broadcast buffers", batch_norm),
    Control("healthy.autocast", "bf16 autocast", autocast),
    Control("healthy.bf16", "pure bf16", pure_bf16),
    Control("healthy.bf16-by-hand", "pure bf16, hand-written all-reduce", partial(pure_bf16, by_hand=True)),
    Control("healthy.clip-norm", "clipping by global norm", clipped),
    Control("healthy.clip-value", "clipping by value", partial(clipped, by_value=True)),
    Control("healthy.clip-by-hand", "clipping by global norm, hand-written all-reduce", partial(clipped, by_hand=True)),
    Control(
        "healthy.clip-value-by-hand",
        "clipping by value, hand-written all-reduce",
        partial(clipped, by_hand=True, by_value=True),
    ),
    Control("healthy.clip-before", "each rank clips before a hand-written average", clipped_before),
    Control("healthy.scaler", "gradient scaler", scaled),
    Control("healthy.scaler-skips", "gradient scaler that skips updates", partial(scaled, init_scale=2.0**24)),
    Control("healthy.compile", "torch.compile inside DDP", compiled),
    Control("healthy.compile-outside", "torch.compile around DDP", partial(compiled, outside=True)),
    Control("healthy.resumed", "resumed from a checkpoint", resumed),
    Control("healthy.evaluation", "evaluation on rank 0 between steps", evaluated),
    Control("healthy.averaged", "a momentum teacher and SWA", averaged),
    Control("healthy.single", "a single process", single, world_size=1),
)
