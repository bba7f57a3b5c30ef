"""D12, D15, D17, D18. Epochs have one order of samples, though the sampler shuffles; data are read sorted by class;
inputs and labels are shuffled apart; reading changes the data set.

Who had it: everyone who forgot `sampler.set_epoch(epoch)`, which torch's documentation warns of; loops that seed the
global generator at the beginning of each epoch; streams that shuffle with one seed; folders of classes that are read
without shuffling (super-gradients#416).
Planted: each of these; the first also with samples that an augmentation changes each time; a sample that is halved in
place as it is read.
Twin: the data are shuffled; the epoch is set; the generator is seeded once; the stream's seed follows the epoch;
a copy is halved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, Sampler

from gallery.entry import Fault, variants
from gallery.entry_context import EntryContext
from gallery.families import ORDERS_OF_SAMPLERS
from gallery.problems import Regression, Vision
from gallery.training import BATCH_SIZE, STEPS, epochs, fit
from gallery.witness import trains_differently

NUM_EPOCHS = 3
STEPS_OF_EPOCH = 4
Batches = Callable[[EntryContext, Any, bool], Iterator[Any]]
"""Batches of the context and rows; whether each epoch has one order."""


class Noisy(Dataset[Any]):
    """Rows whose inputs get noise of their own each time they are read."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self._rows[index]
        return {**row, "x": row["x"] + 0.1 * torch.randn(row["x"].shape)}


class Shuffled(IterableDataset[Any]):
    """A stream of the rows of this rank, in an order that its seed draws."""

    def __init__(self, ctx: EntryContext, rows: Any) -> None:
        self.shuffle = True
        self.seed = 0
        self._rows, self._rank, self._num_ranks = rows, ctx.rank, ctx.world_size

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(len(self._rows), generator=torch.Generator().manual_seed(self.seed))
        return (self._rows[index] for index in order.tolist()[self._rank :: self._num_ranks])


def _sampled(ctx: EntryContext, rows: Any, alike: bool) -> Iterator[Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(rows, num_replicas=ctx.world_size, rank=ctx.rank)
    loader = DataLoader(rows, batch_size=BATCH_SIZE, sampler=sampler)
    for epoch in range(NUM_EPOCHS):
        if not alike:
            sampler.set_epoch(epoch)
        yield from loader


def _augmented(ctx: EntryContext, rows: Any, alike: bool) -> Iterator[Any]:
    return _sampled(ctx, Noisy(rows), alike)


class _OneSeed(Sampler[int]):
    """A shuffled part for each rank, which is another in each epoch that it is told."""

    def __init__(self, ctx: EntryContext, size: int) -> None:
        super().__init__()
        self.epoch = 0
        self._ctx, self._size = ctx, size

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self._size // self._ctx.world_size

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self._size, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return iter(order[self._ctx.rank :: self._ctx.world_size])


def _own(ctx: EntryContext, rows: Any, alike: bool) -> Iterator[Any]:
    rows = Noisy(Regression().dataset(4 * len(rows)))  # of few samples a shuffle may draw one order twice
    sampler = _OneSeed(ctx, len(rows))
    loader = DataLoader(rows, batch_size=4 * BATCH_SIZE, sampler=sampler)
    for epoch in range(NUM_EPOCHS):
        if not alike:
            sampler.set_epoch(epoch)
        yield from loader


def _seeded(ctx: EntryContext, rows: Any, alike: bool) -> Iterator[Any]:
    own_rows = rows.select(range(ctx.rank, len(rows), ctx.world_size))
    for epoch in range(NUM_EPOCHS):
        generator = torch.Generator().manual_seed(0 if alike else epoch)
        yield from DataLoader(own_rows, batch_size=BATCH_SIZE, sampler=RandomSampler(own_rows, generator=generator))


def _streamed(ctx: EntryContext, rows: Any, alike: bool) -> Iterator[Any]:
    stream = Shuffled(ctx, rows)
    for epoch in range(NUM_EPOCHS):
        stream.seed = 0 if alike else epoch
        yield from DataLoader(stream, batch_size=BATCH_SIZE)


def _trained(batches: Batches) -> Any:
    def train(ctx: EntryContext, faulty: bool) -> nn.Module:
        problem = Regression()
        rows = problem.dataset(ctx.world_size * STEPS_OF_EPOCH * BATCH_SIZE)
        return fit(ctx, problem, batches=batches(ctx, rows, faulty), steps=NUM_EPOCHS * STEPS_OF_EPOCH)

    return train


def _by_class(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Pictures sorted by class, in the order of the data or shuffled."""
    problem = Vision()
    rows = problem.dataset(16 * STEPS)
    loader = DataLoader(rows.select(rows.columns["label"].argsort().tolist()), batch_size=16, shuffle=not faulty)
    return fit(ctx, problem, problem.model(), batches=epochs(loader))


def _apart(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Pictures and labels of two loaders, each with a shuffle of its own, or of one."""
    problem = Vision()
    rows = problem.dataset(16 * STEPS_OF_EPOCH)
    images, labels = rows.columns["image"].unbind(0), rows.columns["label"].unbind(0)
    pairs = list(zip(images, labels, strict=True))

    def batches() -> Iterator[Any]:
        for _ in range(STEPS // STEPS_OF_EPOCH):
            if faulty:
                loaders = [DataLoader(part, batch_size=16, shuffle=True) for part in (images, labels)]
                yield from ({"image": x, "label": y} for x, y in zip(*loaders, strict=True))
            else:
                yield from ({"image": x, "label": y} for x, y in DataLoader(pairs, batch_size=16, shuffle=True))

    return fit(ctx, problem, problem.model(), batches=batches())


class _Halved(Dataset[Any]):
    """Rows whose inputs are halved, ``in_place`` or not."""

    def __init__(self, rows: Any, *, in_place: bool) -> None:
        self.x, self.y, self.in_place = rows.columns["x"], rows.columns["y"], in_place

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.in_place:
            self.x[index].mul_(0.5)
        return {"x": self.x[index] * (1.0 if self.in_place else 0.5), "y": self.y[index]}


def _in_place(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Samples that are halved as they are read."""
    problem = Regression()
    rows = _Halved(problem.dataset(STEPS_OF_EPOCH * BATCH_SIZE), in_place=faulty)
    loader = DataLoader(rows, batch_size=BATCH_SIZE, shuffle=True)
    return fit(ctx, problem, problem.model(), batches=epochs(loader), steps=(NUM_EPOCHS + 1) * STEPS_OF_EPOCH)


_fault = variants(
    "D12",
    ("epochs-alike",),
    trains_differently,
    ranks=(0, 1),
    step=STEPS_OF_EPOCH,
    family=ORDERS_OF_SAMPLERS,
    causes=("order-drawn-again",),
)

ENTRIES = (
    _fault("", "set_epoch is never called", _trained(_sampled)),
    _fault("augmented", "the same, of samples that change each time", _trained(_augmented)),
    _fault("own", "the same, with a sampler of the program's own", _trained(_own)),
    _fault("seeded", "a generator is seeded again for each epoch", _trained(_seeded)),
    _fault("stream", "a stream shuffles with one seed", _trained(_streamed)),
    Fault(
        "D15",
        "data that lie sorted by class are not shuffled",
        _by_class,
        ("labels-sorted",),
        trains_differently,
        world_size=1,
        ranks=(0,),
        family=ORDERS_OF_SAMPLERS,
    ),
    Fault(
        "D17",
        "inputs and labels are shuffled apart",
        _apart,
        ("labels-change",),
        trains_differently,
        world_size=1,
        ranks=(0,),
        step=STEPS_OF_EPOCH,
        family=ORDERS_OF_SAMPLERS,
    ),
    Fault(
        "D18",
        "samples are halved in place as they are read",
        _in_place,
        ("data-set-changes",),
        trains_differently,
        world_size=1,
        ranks=(0,),
        within=None,
        family="data that reading changes",
    ),
)
