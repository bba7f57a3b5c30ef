"""D1. Every rank reads the same batches: N workers do the work of one.

Who had it: icefall#1616 (no DistributedSampler), datasets#5360 (a stream that was never split by node), profam#312.
The loss curve looks normal, the run is only N times less efficient, so it is found late, by counting epochs.
Planted: a shuffling DataLoader and equal seeds on all ranks; a sampler told that there is one replica; a stream that
is split over loader workers but not over ranks; a sampler that is given the node instead of the rank, so that pairs
of ranks agree.
Twin: the same loader with a DistributedSampler, or the same stream split by rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, get_worker_info

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import DATA_THAT_IS_NOT_SPLIT
from gallery.problems import CausalLM, Regression, Rows, Vision
from gallery.training import BATCH_SIZE, epochs, fit, sharded_loader
from gallery.witness import same_batches, same_batches_from, shared_samples


def no_sampler(ctx: EntryContext, faulty: bool) -> nn.Module:
    """`shuffle=True` and one seed for all ranks."""
    problem = CausalLM()
    rows = problem.dataset(128)
    generator = torch.Generator().manual_seed(1)
    plain = DataLoader(rows, batch_size=BATCH_SIZE, shuffle=True, generator=generator)
    return fit(ctx, problem, batches=epochs(plain if faulty else sharded_loader(ctx, rows)), steps=16)


def global_seed(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The same, seeded by `torch.manual_seed` as most scripts do."""
    problem = Regression()
    rows = problem.dataset(128)
    torch.manual_seed(1234)
    loader = DataLoader(rows, batch_size=BATCH_SIZE, shuffle=True) if faulty else sharded_loader(ctx, rows)
    return fit(ctx, problem, batches=epochs(loader), steps=16)


def sequential(ctx: EntryContext, faulty: bool) -> nn.Module:
    """No sampler and no shuffling."""
    problem = Vision()
    rows = problem.dataset(128)
    loader = DataLoader(rows, batch_size=BATCH_SIZE) if faulty else sharded_loader(ctx, rows, shuffle=False)
    return fit(ctx, problem, batches=epochs(loader), steps=16)


def one_replica(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A DistributedSampler that was built before the process group, with one replica."""
    problem = Regression()
    rows = problem.dataset(128)
    size, rank = (1, 0) if faulty else (ctx.world_size, ctx.rank)
    loader = DataLoader(rows, batch_size=BATCH_SIZE, sampler=DistributedSampler(rows, num_replicas=size, rank=rank))
    return fit(ctx, problem, batches=epochs(loader), steps=16)


def unsplit_stream(ctx: EntryContext, faulty: bool) -> nn.Module:
    """An IterableDataset that splits itself over loader workers only."""
    problem = CausalLM()
    parts = (0, 1) if faulty else (ctx.rank, ctx.world_size)
    loader = DataLoader(_Stream(problem.dataset(128), *parts), batch_size=BATCH_SIZE)
    return fit(ctx, problem, batches=epochs(loader), steps=16)


def node_for_rank(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Ranks 2k and 2k+1 get the shard of node k."""
    problem = Regression()
    rows = problem.dataset(256)
    size, rank = (ctx.world_size // 2, ctx.rank // 2) if faulty else (ctx.world_size, ctx.rank)
    loader = DataLoader(rows, batch_size=BATCH_SIZE, sampler=DistributedSampler(rows, num_replicas=size, rank=rank))
    return fit(ctx, problem, batches=epochs(loader), steps=16)


def after_an_epoch(ctx: EntryContext, faulty: bool) -> nn.Module:
    """From the second epoch on a fresh loader is made without the sampler."""
    problem = Regression()
    rows = problem.dataset(64)
    generator = torch.Generator().manual_seed(1)
    again = DataLoader(rows, batch_size=BATCH_SIZE, shuffle=True, generator=generator)
    sharded = sharded_loader(ctx, rows)
    later = epochs(again if faulty else sharded, first=1)
    return fit(ctx, problem, batches=chain(sharded, later), steps=16)


def other_order(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The same batches, whose samples each rank puts into an order of its own."""
    problem = CausalLM()
    rows = problem.dataset(128)
    order = torch.randperm(BATCH_SIZE, generator=torch.Generator().manual_seed(ctx.rank))
    loader = DataLoader(rows, batch_size=BATCH_SIZE) if faulty else sharded_loader(ctx, rows)
    batches = ({name: column[order] for name, column in batch.items()} for batch in epochs(loader))
    return fit(ctx, problem, batches=batches, steps=16)


class _Stream(IterableDataset[Any]):
    def __init__(self, rows: Rows, part: int, num_parts: int) -> None:
        self.rows, self.part, self.num_parts = rows, part, num_parts

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(self.part, len(self.rows), self.num_parts)[first::step]:
            yield self.rows[index]


_fault = variants(
    "D1",
    ("duplicate-data",),
    same_batches,
    may_find=("shard-overlap", "dispersion-low"),
    ranks=(0, 1),
    family=DATA_THAT_IS_NOT_SPLIT,
    causes=("data-not-split",),
)

ENTRIES = (
    _fault("", "no DistributedSampler, equal seeds", no_sampler),
    _fault("global-seed", "no DistributedSampler, torch.manual_seed", global_seed, variant_of="D1"),
    _fault("sequential", "no DistributedSampler, no shuffling", sequential, variant_of="D1"),
    _fault(
        "one-replica",
        "DistributedSampler with num_replicas=1",
        one_replica,
        causes=("data-not-split", "sampler-rank-wrong"),
    ),
    _fault("stream", "IterableDataset not split over ranks", unsplit_stream, causes=("stream-not-split",)),
    _fault(
        "second-epoch",
        "no DistributedSampler from the second epoch on",
        after_an_epoch,
        shows=same_batches_from(8),
        step=8,
        causes=("data-not-split", "sampler-not-used"),
        variant_of="D1",
    ),
    _fault("order", "the same batches in another order", other_order, shows=shared_samples, variant_of="D1"),
    _fault(
        "pairs",
        "sampler given the node instead of the rank",
        node_for_rank,
        ranks=(0, 1, 2, 3),
        world_size=4,
        causes=("sampler-rank-wrong",),
    ),
)
