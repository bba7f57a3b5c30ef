"""D2. The sampler's seed depends on the rank, so every rank shards another permutation.

Who had it: LongLive#71; setting S1-3 of the paper. Each rank reads its N-th of an order of its own: within an epoch
some samples are read several times and others never. Losses, norms and cosines look healthy.
Planted: `seed + rank` in the DistributedSampler; `shuffle=True` without a sampler and with `manual_seed(seed +
rank)`; ranks that disagree on the epoch; a stream that each rank shuffles with its own seed before it takes its
stride.
Twin: the same with one seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import ORDERS_OF_SAMPLERS
from gallery.problems import CausalLM, Regression, Rows
from gallery.training import BATCH_SIZE, epochs, fit, sharded_loader
from gallery.witness import samples_differ, shared_samples


def rank_in_seed(ctx: EntryContext, faulty: bool) -> nn.Module:
    """`DistributedSampler(seed=args.seed + rank)`."""
    problem = CausalLM()
    loader = sharded_loader(ctx, problem.dataset(128), seed=1 + ctx.rank * faulty)
    return fit(ctx, problem, batches=epochs(loader), steps=16)


def rank_in_seed_four(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The same on four ranks, as in the paper."""
    problem = Regression()
    loader = sharded_loader(ctx, problem.dataset(256), seed=1 + ctx.rank * faulty)
    return fit(ctx, problem, batches=epochs(loader), steps=16)


def own_shuffles(ctx: EntryContext, faulty: bool) -> nn.Module:
    """No sampler at all, and every rank seeds its own shuffling."""
    problem = Regression()
    rows = problem.dataset(128)
    torch.manual_seed(1 + ctx.rank)
    loader = DataLoader(rows, batch_size=BATCH_SIZE, shuffle=True) if faulty else sharded_loader(ctx, rows)
    return fit(ctx, problem, batches=epochs(loader), steps=24)


def other_epoch(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Rank 1 resumed from a later epoch number than rank 0."""
    problem = Regression()
    loader = sharded_loader(ctx, problem.dataset(128), seed=1)
    first = 3 + (ctx.rank if faulty else 0)
    return fit(ctx, problem, batches=epochs(loader, first=first), steps=16)


def own_stream_order(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A stream shuffled by rank before it is strided by rank."""
    problem = CausalLM()
    stream = _ShuffledStream(problem.dataset(128), ctx.rank, ctx.world_size, 1 + ctx.rank * faulty)
    return fit(ctx, problem, batches=epochs(DataLoader(stream, batch_size=BATCH_SIZE)), steps=16)


def before_any_overlap(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A dataset so large that the run ends long before a sample is likely to be read twice."""
    problem = Regression()
    loader = sharded_loader(ctx, problem.dataset(50_000), seed=1 + ctx.rank * faulty)
    return fit(ctx, problem, batches=epochs(loader), steps=12)


class _ShuffledStream(IterableDataset[Any]):
    def __init__(self, rows: Rows, part: int, num_parts: int, seed: int) -> None:
        self.rows, self.part, self.num_parts, self.seed = rows, part, num_parts, seed

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(self.seed))
        for index in order[self.part :: self.num_parts]:
            yield self.rows[int(index)]


_fault = variants(
    "D2",
    ("shard-overlap",),
    shared_samples,
    ranks=(0, 1),
    within=None,
    family=ORDERS_OF_SAMPLERS,
    causes=("sampler-seeds-differ",),
)

ENTRIES = (
    _fault("", "sampler seed depends on the rank", rank_in_seed),
    _fault(
        "four",
        "sampler seed depends on the rank, four ranks",
        rank_in_seed_four,
        ranks=(0, 1, 2, 3),
        world_size=4,
        variant_of="D2",
    ),
    _fault("no-sampler", "no DistributedSampler, a seed per rank", own_shuffles, causes=("orders-not-shared",)),
    _fault("epoch", "ranks disagree on the epoch", other_epoch, causes=("sampler-epochs-differ",)),
    _fault(
        "stream", "stream shuffled by rank, then strided by rank", own_stream_order, causes=("stream-shuffled-by-rank",)
    ),
    _fault(
        "large",
        "sampler seed depends on the rank, before any overlap",
        before_any_overlap,
        shows=samples_differ,
        variant_of="D2",
    ),
)
