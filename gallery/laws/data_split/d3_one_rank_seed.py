"""D3. One rank alone shards another permutation than the rest.

Who had it: setting S1-2 of the paper (rank 0 keeps the default seed of its sampler while a launcher gives the others
theirs). Only pairs with that rank overlap, which is what names it.
Planted: another sampler seed on rank 0; on rank 2; a set_epoch that rank 0 alone never calls.
Twin: one seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import ORDERS_OF_SAMPLERS
from gallery.problems import Regression
from gallery.training import epochs, fit, sharded_loader
from gallery.witness import shared_samples, shared_samples_from


def seed_of_rank_0(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Rank 0 has the default seed."""
    return _with_odd_rank(ctx, 0 if faulty else -1)


def seed_of_rank_2(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Rank 2 has the default seed."""
    return _with_odd_rank(ctx, 2 if faulty else -1)


def no_set_epoch(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The call to `set_epoch` sits under `if rank != 0`; it shows from the second epoch on."""
    problem = Regression()
    loader = sharded_loader(ctx, problem.dataset(128), seed=1)
    repeats = faulty and ctx.rank == 0
    return fit(ctx, problem, batches=_again(loader) if repeats else epochs(loader), steps=16)


def _with_odd_rank(ctx: EntryContext, odd_rank: int) -> nn.Module:
    problem = Regression()
    loader = sharded_loader(ctx, problem.dataset(256), seed=0 if ctx.rank == odd_rank else 1)
    return fit(ctx, problem, batches=epochs(loader), steps=16)


def _again(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


_fault = variants(
    "D3",
    ("shard-overlap",),
    shared_samples,
    ranks=(0,),
    within=None,
    world_size=4,
    family=ORDERS_OF_SAMPLERS,
    causes=("sampler-seeds-differ",),
)

ENTRIES = (
    _fault("", "rank 0 alone has another sampler seed", seed_of_rank_0),
    _fault("rank-2", "rank 2 alone has another sampler seed", seed_of_rank_2, ranks=(2,), variant_of="D3"),
    _fault(
        "set-epoch",
        "rank 0 alone never calls set_epoch",
        no_set_epoch,
        shows=shared_samples_from(8),
        step=8,
        may_find=("epochs-alike",),
        causes=("sampler-epochs-differ",),
        variant_of="D2.epoch",
    ),
)
