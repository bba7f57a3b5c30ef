"""Healthy runs in which workers differ for reasons that are no fault, long enough for a false alarm."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from gallery.entry import Control
from gallery.entry_context import EntryContext
from gallery.problems import CausalLM, Regression
from gallery.training import BATCH_SIZE, batches_of, epochs, fit, sgd, sharded_loader, wrapped

LONG_STEPS = 48
MIXTURES = ((0, 1), (2, 3))


def scheduled(ctx: EntryContext) -> nn.Module:
    """Warm-up, and two spikes of the learning rate that the schedule asks for: the loss of all workers jumps."""
    problem = Regression()
    model = wrapped(problem.model())
    optimizer = sgd(model)
    scheduler = LambdaLR(optimizer, lambda step: 6.0 if step in (20, 32) else min(1.0, (step + 1) / 10))
    return fit(
        ctx,
        problem,
        model,
        optimizer=optimizer,
        batches=batches_of(ctx, problem, num_samples=1024),
        steps=LONG_STEPS,
        after_step=lambda step: scheduler.step(),
    )


def late(ctx: EntryContext) -> nn.Module:
    """A model that has been trained before, alike on all ranks: workers' gradients are noise and nearly orthogonal."""
    problem = Regression()
    start = problem.model()
    fit(
        EntryContext(0, 1),
        problem,
        start,
        lr=0.02,
        batches=batches_of(EntryContext(0, 1), problem, batch_size=16),
        steps=150,
    )
    batches = batches_of(ctx, problem, num_samples=1024)
    model = wrapped(start)
    return fit(ctx, problem, model, lr=1e-4, batches=batches, steps=LONG_STEPS)


def heavy_tailed(ctx: EntryContext) -> nn.Module:
    """Inputs with Cauchy tails on four ranks."""
    problem = Regression(heavy_tailed=True)
    batches = batches_of(ctx, problem, num_samples=1024)
    return fit(ctx, problem, lr=1e-4, batches=batches, steps=LONG_STEPS)


def declared(ctx: EntryContext) -> nn.Module:
    """Two data mixtures, half as hard again on ranks 2 and 3, declared in the plan."""
    problem = Regression()
    spread = 2.0 if ctx.rank in MIXTURES[1] else 1.0
    batches = ({**batch, "y": spread * batch["y"]} for batch in batches_of(ctx, problem, num_samples=1024))
    return fit(ctx, problem, batches=batches, steps=LONG_STEPS, plan={"worker_groups": MIXTURES})


def fixed_shards(ctx: EntryContext) -> nn.Module:
    """Every rank goes through the same eight samples of its own again and again."""
    problem = Regression()
    loader = sharded_loader(ctx, problem.dataset(8 * ctx.world_size), shuffle=False)
    return fit(ctx, problem, batches=epochs(loader), steps=LONG_STEPS)


def uneven_last_batch(ctx: EntryContext) -> nn.Module:
    """Every rank has a file of its own, of another length: last batches are short, at other steps on other ranks."""
    problem = Regression()
    rows = problem.dataset(200).select(range(50 * ctx.rank, 50 * ctx.rank + 29 + 5 * ctx.rank))
    loader = DataLoader(rows, batch_size=BATCH_SIZE, shuffle=True, generator=torch.Generator().manual_seed(ctx.rank))
    return fit(ctx, problem, batches=epochs(loader), steps=LONG_STEPS)


def curriculum(ctx: EntryContext) -> nn.Module:
    """Sequences get harder at one step, on all ranks alike."""
    problem = CausalLM()
    easy = _constant(batches_of(ctx, problem, num_samples=1024))
    hard = batches_of(ctx, problem, num_samples=1024)

    def both() -> Iterator[Any]:
        yield from islice(easy, LONG_STEPS // 2)
        yield from hard

    return fit(ctx, problem, batches=both(), steps=LONG_STEPS)


def _constant(batches: Iterator[Any]) -> Iterator[Any]:
    """Sequences that repeat their first token."""
    for batch in batches:
        first_BL = batch["input_ids"][:, :1].expand_as(batch["input_ids"]).contiguous()
        yield {"input_ids": first_BL, "labels": first_BL.clone()}


_of_four = partial(Control, world_size=4)

ENTRIES = (
    _of_four("healthy.schedule-long", "warm-up and spikes of the learning rate, long enough for an alarm", scheduled),
    _of_four("healthy.late", "late training, gradients nearly orthogonal", late),
    _of_four("healthy.heavy-tails-four", "heavy-tailed batches on four ranks", heavy_tailed),
    _of_four("healthy.mixtures", "two data mixtures, declared as groups", declared),
    _of_four("healthy.fixed-shards", "the same few samples a rank in every epoch", fixed_shards),
    _of_four("healthy.last-batch", "last batches of other lengths on other ranks", uneven_last_batch),
    _of_four("healthy.curriculum", "a curriculum that hits all workers", curriculum),
)
