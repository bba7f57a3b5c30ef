"""D11. As D1, where no digest shows it: workers read the same samples, and something makes them look different.

Who had it: as D1, with an augmentation, a random prefix or a mask that each rank draws for itself. No two inputs are
equal then, nor any two losses.
Planted: a random first token of each rank's own in front of samples that two ranks of four share; the same for both
ranks of two, under dropout.
Twin: the same first tokens in front of samples that nobody shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import DATA_THAT_IS_NOT_SPLIT
from gallery.problems import CausalLM
from gallery.training import adamw, epochs, fit, wrapped
from gallery.witness import trains_differently

BATCH_SIZE = 8
COPIES = (1, 2)
"""Ranks of four that read the shard of the first of them."""


def a_pair(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Two ranks of four share a shard; only the loss of whole batches is recorded."""
    problem = CausalLM()
    shard = COPIES[0] if faulty and ctx.rank in COPIES else ctx.rank
    return fit(ctx, problem, batches=_with_own_token(ctx, problem, shard), steps=32)


def both(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Both ranks of two read the same samples, each under its own dropout; losses of samples are recorded."""
    problem = CausalLM(dropout=0.1)
    model = wrapped(problem.model())
    optimizer = adamw(model)
    torch.manual_seed(100 + ctx.rank)
    watch = ctx.watch(model, optimizer, rng="different")
    for batch in islice(_with_own_token(ctx, problem, 0 if faulty else ctx.rank), 20):
        with watch.step(batch):
            losses_B = _of_samples(model, batch)
            watch.loss(losses_B.detach(), tokens=float(batch["labels"].shape[1] - 1))
            losses_B.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        ctx.note([batch], losses_B.mean().item())
    watch.close()
    return model


def _of_samples(model: nn.Module, batch: Any) -> Tensor:
    logits_BVL = model(batch["input_ids"])[:, :-1].transpose(1, 2)
    return functional.cross_entropy(logits_BVL, batch["labels"][:, 1:], reduction="none").mean(dim=1)


def _with_own_token(ctx: EntryContext, problem: CausalLM, shard: int) -> Iterator[Any]:
    rows = problem.dataset(2048)
    sampler: DistributedSampler[Any] = DistributedSampler(rows, num_replicas=ctx.world_size, rank=shard)
    draw = torch.Generator().manual_seed(ctx.rank)
    for batch in epochs(DataLoader(rows, batch_size=BATCH_SIZE, sampler=sampler)):
        batch["input_ids"][:, 0] = torch.randint(problem.vocab_size, (BATCH_SIZE,), generator=draw)
        yield batch


_fault = variants(
    "D11",
    ("dispersion-low",),
    trains_differently,
    within=None,
    family=DATA_THAT_IS_NOT_SPLIT,
    causes=("sampler-rank-wrong", "data-not-split"),
    variant_of="D11",
)

ENTRIES = (
    _fault(
        "pair",
        "two ranks of four read the same samples behind tokens of their own",
        a_pair,
        may_find=("shard-overlap", "worker-direction-outlier", "draws-alike"),
        ranks=COPIES,
        world_size=4,
    ),
    _fault(
        "",
        "both ranks read the same samples behind tokens of their own, under dropout",
        both,
        may_find=("shard-overlap", "draws-alike"),
        ranks=(0, 1),
    ),
)
