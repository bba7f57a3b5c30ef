"""D4. The data is sharded twice: each rank keeps one N-th of its own N-th, and the rest is never read.

Who had it: accelerate#4199, #4062, #3520 (a rank-aware dataset handed to a library that shards again). No rank reads
what another reads, so nothing overlaps; what is missing is coverage.
Planted: a shard of the rows by rank under a DistributedSampler, with and without shuffling, as a Subset, a list, a
TensorDataset, a custom dataset whose size the user declares, and a stream strided twice.
Twin: sharded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.problems import CausalLM, Regression, Rows
from gallery.training import BATCH_SIZE, epochs, fit, sgd, sharded_loader, wrapped
from gallery.witness import fewer_samples, samples_differ

NUM_SAMPLES = 128


def subset(ctx: EntryContext, faulty: bool) -> nn.Module:
    """`Subset(dataset, range(rank, n, world))` under a shuffling DistributedSampler."""
    rows = Regression().dataset(NUM_SAMPLES)
    return _train(ctx, Subset(rows, list(_shard(ctx))) if faulty else rows)


def subset_in_order(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The same without shuffling: the same quarter of the data for ever."""
    rows = Regression().dataset(NUM_SAMPLES)
    return _train(ctx, Subset(rows, list(_shard(ctx))) if faulty else rows, shuffle=False)


def selected_rows(ctx: EntryContext, faulty: bool) -> nn.Module:
    """`dataset.shard(world, rank)` of a dataset class of the user's own."""
    rows = Regression().dataset(NUM_SAMPLES)
    return _train(ctx, rows.select(_shard(ctx)) if faulty else rows)


def list_of_samples(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A Python list of samples, sliced by rank."""
    rows = Regression().dataset(NUM_SAMPLES)
    samples = [rows[index] for index in (_shard(ctx) if faulty else range(NUM_SAMPLES))]
    return _train(ctx, samples, shuffle=False)  # type: ignore[arg-type]


def tensors(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A TensorDataset over tensors that were sliced by rank."""
    rows = Regression().dataset(NUM_SAMPLES)
    rows = rows.select(_shard(ctx)) if faulty else rows
    return _train(ctx, TensorDataset(rows.columns["x"], rows.columns["y"]), shuffle=False)


def declared_size(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Read lazily, in order, and the plan says how many samples an epoch should have."""
    rows = Regression().dataset(NUM_SAMPLES)
    dataset = _Lazy(rows, _shard(ctx) if faulty else range(NUM_SAMPLES))
    return _train(ctx, dataset, shuffle=False, dataset_size=NUM_SAMPLES)


def short_run(ctx: EntryContext, faulty: bool) -> nn.Module:
    """`Subset` under a DistributedSampler, in a run that ends within the first epoch."""
    rows = Regression().dataset(4 * NUM_SAMPLES)
    indices = range(ctx.rank, len(rows), ctx.world_size)
    return _train(ctx, Subset(rows, list(indices)) if faulty else rows, steps=12)


def batches_sharded_again(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A library wraps the batch sampler of a loader that has a DistributedSampler already."""
    rows = Regression().dataset(NUM_SAMPLES)
    loader = sharded_loader(ctx, rows)
    sampler = loader.sampler
    if faulty:
        loader = DataLoader(rows, batch_sampler=_EveryNth(loader.batch_sampler, ctx.rank, ctx.world_size))
    return fit(ctx, _Columns(), batches=epochs(loader, sampler=sampler), steps=40)


def strided_stream(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A stream that a wrapper strides by rank a second time; the plan says how many samples there are."""
    problem = CausalLM()
    stream: IterableDataset[Any] = _Strided(problem.dataset(NUM_SAMPLES), ctx)
    loader = DataLoader(_Strided(stream, ctx) if faulty else stream, batch_size=BATCH_SIZE)
    model = wrapped(problem.model())
    plan = {"dataset_size": NUM_SAMPLES}
    return fit(ctx, problem, model, optimizer=sgd(model), batches=epochs(loader), steps=40, plan=plan)


def _shard(ctx: EntryContext) -> range:
    return range(ctx.rank, NUM_SAMPLES, ctx.world_size)


def _train(
    ctx: EntryContext, dataset: Dataset[Any], *, shuffle: bool = True, steps: int = 40, **plan: Any
) -> nn.Module:
    batches = epochs(sharded_loader(ctx, dataset, shuffle=shuffle))
    return fit(ctx, _Columns(), batches=batches, steps=steps, plan=plan)


class _EveryNth(BatchSampler):
    """Every N-th batch of another batch sampler."""

    def __init__(self, batches: Any, part: int, num_parts: int) -> None:
        super().__init__(batches.sampler, batches.batch_size, batches.drop_last)
        self.batches, self.part, self.num_parts = batches, part, num_parts

    def __iter__(self) -> Iterator[list[int]]:
        return islice(iter(self.batches), self.part, None, self.num_parts)

    def __len__(self) -> int:
        return len(range(self.part, len(self.batches), self.num_parts))


class _Columns(Regression):
    """Regression whose batch may be the pair that a TensorDataset gives."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, self._named(batch))

    def tokens(self, batch: Any) -> float:
        return super().tokens(self._named(batch))

    def _named(self, batch: Any) -> Any:
        return batch if isinstance(batch, dict) else dict(zip(("x", "y"), batch, strict=True))


class _Lazy(Dataset[Any]):
    def __init__(self, rows: Rows, indices: range) -> None:
        self.read, self.indices = rows.__getitem__, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.read(self.indices[index])


class _Strided(IterableDataset[Any]):
    def __init__(self, source: Any, ctx: EntryContext) -> None:
        self.source, self.part, self.num_parts = source, ctx.rank, ctx.world_size

    def __iter__(self) -> Iterator[Any]:
        samples = (
            self.source
            if isinstance(self.source, IterableDataset)
            else map(self.source.__getitem__, range(len(self.source)))
        )
        for index, sample in enumerate(samples):
            if index % self.num_parts == self.part:
                yield sample


_fault = variants(
    "D4",
    ("shard-overlap",),
    fewer_samples,
    within=None,
    family="data that is split twice",
    causes=("data-split-twice",),
    variant_of="D4",
)

ENTRIES = (
    _fault("", "Subset by rank under a DistributedSampler", subset),
    _fault("in-order", "Subset by rank, no shuffling", subset_in_order),
    _fault("own-dataset", "the user's own dataset sharded by rank", selected_rows),
    _fault("list", "list of samples sliced by rank", list_of_samples),
    _fault("tensors", "TensorDataset sliced by rank", tensors),
    _fault("declared", "lazy dataset sharded by rank, size declared", declared_size),
    _fault("short", "Subset by rank, a run within one epoch", short_run, shows=samples_differ),
    _fault("batches", "batch sampler sharded over a DistributedSampler", batches_sharded_again, variant_of=""),
    _fault("four", "Subset by rank under a DistributedSampler, four ranks", subset, shows=samples_differ, world_size=4),
    _fault("stream", "stream strided by rank twice, size declared", strided_stream, variant_of=""),
)
