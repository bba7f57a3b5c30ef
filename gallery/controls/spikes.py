"""Healthy runs that are long enough to be judged along time, and jump for reasons that are no fault."""

from __future__ import annotations

from itertools import islice

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import LambdaLR

from gallery.entry import Control
from gallery.entry_context import EntryContext
from gallery.problems import CausalLM, Regression, Vision
from gallery.training import adamw, batches_of, epochs, fit, sgd, sharded_loader, wrapped

LONG_STEPS = 120


def scheduled(ctx: EntryContext) -> nn.Module:
    """Warm-up, and two spikes of the learning rate that the schedule asks for: the loss jumps twentyfold."""
    problem = Regression()
    model = wrapped(problem.model())
    optimizer = sgd(model, lr=0.02)
    scheduler = LambdaLR(optimizer, lambda step: 30.0 if step in (100, 101, 130) else min(1.0, (step + 1) / 20))
    batches = batches_of(ctx, problem, num_samples=4096, batch_size=16)
    return fit(
        ctx, problem, model, optimizer=optimizer, batches=batches, steps=160, after_step=lambda step: scheduler.step()
    )


def heavy_tailed(ctx: EntryContext) -> nn.Module:
    """Inputs with Cauchy tails: now and then a batch has many times the usual loss and gradient."""
    problem = Regression(heavy_tailed=True)
    model = wrapped(problem.model())
    batches = batches_of(ctx, problem, num_samples=2048)
    return fit(ctx, problem, model, optimizer=adamw(model, lr=1e-3), batches=batches, steps=2 * LONG_STEPS)


def short_last_batch(ctx: EntryContext) -> nn.Module:
    """Epochs whose last batch is a quarter of the others, with the noise of so few samples."""
    problem = Vision()
    loader = sharded_loader(ctx, problem.dataset(132), batch_size=8)
    return fit(ctx, problem, batches=epochs(loader), steps=LONG_STEPS)


def resumed(ctx: EntryContext) -> nn.Module:
    """Weights of a model that was trained before, with an optimizer that is new and a learning rate that warms up."""
    problem = CausalLM()
    batches = batches_of(ctx, problem, num_samples=1024)
    model = wrapped(problem.model())
    fit(EntryContext(ctx.rank, ctx.world_size), problem, model, batches=islice(batches, 60), steps=60)
    optimizer = adamw(model)
    scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 40))
    return fit(
        ctx,
        problem,
        model,
        optimizer=optimizer,
        batches=batches,
        steps=LONG_STEPS,
        after_step=lambda step: scheduler.step(),
    )


def doubling_scaler(ctx: EntryContext) -> nn.Module:
    """A gradient scaler that doubles its scale every 16 steps, and with it every gradient that is seen."""
    problem = CausalLM()
    model = wrapped(problem.model())
    optimizer = adamw(model)
    scaler = GradScaler("cpu", init_scale=2.0**4, growth_interval=16)
    watch = ctx.watch(model, optimizer)
    for batch in islice(batches_of(ctx, problem, num_samples=1024), LONG_STEPS):
        with watch.step(batch):
            loss = _half_loss(problem, model, batch)
            watch.loss(loss.detach(), problem.tokens(batch))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        ctx.note([batch], loss.item())
    watch.close()
    return model


def _half_loss(problem: CausalLM, model: nn.Module, batch: object) -> Tensor:
    with torch.autocast("cpu", torch.float16):
        return problem.loss(model, batch)


ENTRIES = (
    Control("healthy.long-schedule", "warm-up and scheduled spikes of the learning rate, long", scheduled),
    Control("healthy.long-heavy-tailed", "heavy-tailed batches, long", heavy_tailed),
    Control("healthy.long-last-batch", "short last batches of epochs, long", short_last_batch),
    Control("healthy.long-resumed", "resumed with a new optimizer and warm-up, long", resumed),
    Control("healthy.long-scaler", "a gradient scaler that doubles again and again", doubling_scaler),
)
