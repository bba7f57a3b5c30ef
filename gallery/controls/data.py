"""Healthy data that looks odd: padding, duplicates, replacement, heavy tails, uneven masks, several epochs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from gallery.entry import Control
from gallery.entry_context import EntryContext
from gallery.problems import IGNORED, CausalLM, Regression
from gallery.training import BATCH_SIZE, batches_of, epochs, fit, sharded_loader

LONG_STEPS = 40


def padded(ctx: EntryContext) -> nn.Module:
    """A number of samples that the ranks do not divide: the sampler repeats some, and the last batch is short."""
    return _train(ctx, sharded_loader(ctx, Regression().dataset(101)))


def dropped(ctx: EntryContext) -> nn.Module:
    """The same with `drop_last`: every epoch leaves other samples out."""
    return _train(ctx, sharded_loader(ctx, Regression().dataset(101), drop_last=True))


def many_epochs(ctx: EntryContext) -> nn.Module:
    """A small dataset read again and again, reshuffled each time."""
    return _train(ctx, sharded_loader(ctx, Regression().dataset(32)))


def same_order(ctx: EntryContext) -> nn.Module:
    """Several epochs in one order: each rank sees its own samples only, for ever."""
    return _train(ctx, sharded_loader(ctx, Regression().dataset(64), shuffle=False))


def duplicate_rows(ctx: EntryContext) -> nn.Module:
    """A dataset in which every fourth row is a copy of another."""
    rows = Regression().dataset(192)
    return _train(ctx, sharded_loader(ctx, rows.select([*range(192), *range(0, 192, 3)])))


def few_distinct(ctx: EntryContext) -> nn.Module:
    """A dataset of 24 distinct rows, each sixteen times over."""
    rows = Regression().dataset(24)
    return _train(ctx, sharded_loader(ctx, rows.select([*range(24)] * 16)))


def with_replacement(ctx: EntryContext) -> nn.Module:
    """Every rank draws with replacement, from its own seed, as weighted sampling does."""
    rows = Regression().dataset(128)
    draw = RandomSampler(rows, replacement=True, num_samples=10_000, generator=torch.Generator().manual_seed(ctx.rank))
    return _train(ctx, DataLoader(rows, batch_size=BATCH_SIZE, sampler=draw))


def files_of_its_own(ctx: EntryContext) -> nn.Module:
    """No sampler: every rank was given its own rows beforehand, and shuffles them as it likes."""
    rows = Regression().dataset(128).select(range(ctx.rank, 128, ctx.world_size))
    generator = torch.Generator().manual_seed(ctx.rank)
    return _train(ctx, DataLoader(rows, batch_size=BATCH_SIZE, shuffle=True, generator=generator))


def own_files_one_replica(ctx: EntryContext) -> nn.Module:
    """The same with a DistributedSampler that was told there is one replica."""
    rows = Regression().dataset(128).select(range(ctx.rank, 128, ctx.world_size))
    sampler: DistributedSampler[Any] = DistributedSampler(rows, num_replicas=1, rank=0)
    return _train(ctx, DataLoader(rows, batch_size=BATCH_SIZE, sampler=sampler))


def limited_epochs(ctx: EntryContext) -> nn.Module:
    """Epochs that end after five batches, as `limit_train_batches` has it; each draws another part of the data."""
    loader = sharded_loader(ctx, Regression().dataset(128))

    def limited() -> Iterator[Any]:
        for epoch in count():
            loader.sampler.set_epoch(epoch)
            yield from islice(loader, 5)

    return fit(ctx, Regression(), batches=limited(), steps=LONG_STEPS)


def in_workers(ctx: EntryContext) -> nn.Module:
    """Batches made by two loader processes."""
    rows = Regression().dataset(64)
    sampler: DistributedSampler[Any] = DistributedSampler(rows, num_replicas=ctx.world_size, rank=ctx.rank)
    loader = DataLoader(
        rows,
        batch_size=BATCH_SIZE,
        sampler=sampler,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",  # not that of the server of ranks, which would import torch for each
    )
    return fit(ctx, Regression(), batches=epochs(loader), steps=16)


def strided_by_batch(ctx: EntryContext) -> nn.Module:
    """No sampler: each rank takes every N-th batch of one common shuffled order."""
    rows = Regression().dataset(256)
    loader = DataLoader(rows, batch_size=BATCH_SIZE, shuffle=True, generator=torch.Generator().manual_seed(3))

    def mine() -> Iterator[Any]:
        for index, batch in enumerate(epochs(loader)):
            if index % ctx.world_size == ctx.rank:
                yield batch

    return fit(ctx, Regression(), batches=mine(), steps=24)


def sliced_batch(ctx: EntryContext) -> nn.Module:
    """Every rank loads the whole batch and trains on its slice of it."""
    rows = Regression().dataset(256)
    loader = DataLoader(
        rows, batch_size=BATCH_SIZE * ctx.world_size, shuffle=True, generator=torch.Generator().manual_seed(3)
    )
    mine = slice(ctx.rank, None, ctx.world_size)
    slices = ({name: column[mine] for name, column in batch.items()} for batch in epochs(loader))
    return fit(ctx, Regression(), batches=slices, steps=24)


def heavy_tailed(ctx: EntryContext) -> nn.Module:
    """Inputs with Cauchy tails: losses and norms jump by orders of magnitude."""
    problem = Regression(heavy_tailed=True)
    return fit(ctx, problem, lr=1e-4, steps=LONG_STEPS)


def token_weighted(ctx: EntryContext) -> nn.Module:
    """Very uneven numbers of labels, each token weighing the same over all ranks."""
    problem = CausalLM()

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        num_tokens = torch.tensor(problem.tokens(batch))
        dist.all_reduce(num_tokens)
        logits_BLV, labels_BL = called(batch["input_ids"])[:, :-1], batch["labels"][:, 1:]
        total = functional.cross_entropy(logits_BLV.flatten(0, 1), labels_BL.flatten(), reduction="sum")
        return total * ctx.world_size / num_tokens

    return fit(ctx, problem, batches=_uneven(ctx, batches_of(ctx, problem)), loss_of=loss_of)


def own_dropout(ctx: EntryContext) -> nn.Module:
    """Dropout with a generator per rank, as it should be."""
    torch.manual_seed(100 + ctx.rank)
    return fit(ctx, CausalLM(dropout=0.3))


def common_dropout(ctx: EntryContext) -> nn.Module:
    """Dropout with the same masks on all ranks, which is common and does no harm."""
    torch.manual_seed(100)
    return fit(ctx, CausalLM(dropout=0.3))


def _train(ctx: EntryContext, loader: DataLoader[Any]) -> nn.Module:
    return fit(ctx, Regression(), batches=epochs(loader), steps=LONG_STEPS)


def _uneven(ctx: EntryContext, batches: Iterator[Any]) -> Iterator[Any]:
    for step, batch in enumerate(batches):
        labels_BL = batch["labels"].clone()
        kept = 1 if (step + ctx.rank) % ctx.world_size else labels_BL.shape[1]
        labels_BL[:, :-kept] = IGNORED
        yield {**batch, "labels": labels_BL}


ENTRIES = (
    Control("healthy.padding", "samples not divisible by ranks", padded),
    Control("healthy.padding-four", "samples not divisible by four ranks", padded, world_size=4),
    Control("healthy.drop-last", "samples not divisible, drop_last", dropped),
    Control("healthy.epochs", "several epochs with set_epoch", many_epochs),
    Control("healthy.in-order", "several epochs in one order", same_order),
    Control("healthy.duplicate-rows", "dataset with duplicate rows", duplicate_rows),
    Control("healthy.few-distinct", "dataset of few distinct rows", few_distinct),
    Control("healthy.replacement", "sampling with replacement", with_replacement),
    Control("healthy.own-files", "every rank has rows of its own, no sampler", files_of_its_own),
    Control(
        "healthy.own-files-sampler", "every rank has rows of its own, a sampler of one replica", own_files_one_replica
    ),
    Control("healthy.limited", "epochs that end early", limited_epochs),
    Control("healthy.loader-workers", "loader processes", in_workers),
    Control("healthy.strided", "every N-th batch of a common order", strided_by_batch),
    Control("healthy.sliced", "every rank slices the common batch", sliced_batch),
    Control("healthy.heavy-tails", "heavy-tailed batches", heavy_tailed),
    Control("healthy.token-weighted", "token-weighted averaging, uneven masks", token_weighted),
    Control("healthy.dropout", "dropout generator per rank", own_dropout),
    Control("healthy.dropout-equal", "the same dropout on all ranks", common_dropout),
)
