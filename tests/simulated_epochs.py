"""Consumption of samples by simulated workers: healthy in many ways, and overlapping as in the paper's settings.

Row ids stand for samples; equal ids are equal samples. No training, no Run: only what the two checks see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueline.judge.series.declared_sampling import DeclaredSampling
from trueline.laws.data_split.consumed import Samples

Ids = NDArray[np.int64]
Epoch = list[Ids]
"""The row ids that each worker consumes in one epoch, in order."""


@dataclass(frozen=True)
class Size:
    """One size of job."""

    rows: int
    workers: int
    batch: int
    epochs: int


def samples_of(
    epochs: Sequence[Epoch], batch: int, *, blocks_known: bool = True, num_steps: int | None = None
) -> Samples:
    """The slots of ``epochs``, cut after ``num_steps`` steps."""
    columns: list[tuple[Ids, ...]] = []
    first_step = 0
    for block, workers in enumerate(epochs):
        for worker, ids in enumerate(workers):
            index = np.arange(len(ids))
            columns.append(
                (
                    ids,
                    first_step + index // batch,
                    np.full(len(ids), worker),
                    index % batch,
                    np.full(len(ids), block if blocks_known else 0),
                )
            )
        first_step += max(-(-len(ids) // batch) for ids in workers)
    ids, step, worker, position, block = (np.concatenate(column) for column in zip(*columns, strict=True))
    kept = np.arange(len(ids)) if num_steps is None else np.flatnonzero(step < num_steps)
    order = kept[np.lexsort((position[kept], worker[kept], step[kept], block[kept]))]
    return Samples(
        ranks=tuple(range(len(epochs[0]))),
        digest=_mixed(ids[order]),
        step=step[order],
        worker=worker[order],
        position=position[order],
        block=block[order],
        block_known=blocks_known,
    )


def sharded(order: Ids, workers: int, *, drop_last: bool = False) -> Epoch:
    """One order dealt to all workers, as torch's DistributedSampler does, padded from its start."""
    if drop_last:
        order = order[: len(order) // workers * workers]
    padding = -len(order) % workers
    padded = np.concatenate([order, np.resize(order, padding)])
    return [padded[worker::workers] for worker in range(workers)]


def even_batches(order: Ids, workers: int, batch: int) -> Epoch:
    """One order dealt batch by batch, the last round filled up from the start, as Hugging Face Accelerate does."""
    padding = -len(order) % (workers * batch)
    padded = np.concatenate([order, np.resize(order, padding)]).reshape(-1, workers, batch)
    return [padded[:, worker].ravel() for worker in range(workers)]


def with_copies(size: Size, rng: np.random.Generator, copies: float) -> Ids:
    """[rows] the content of each row, of which about the fraction ``copies`` repeats another row."""
    content = np.arange(size.rows)
    repeated = rng.random(size.rows) < copies
    content[repeated] = rng.integers(size.rows, size=int(repeated.sum()))
    return content


def distributed(size: Size, rng: np.random.Generator, content: Ids, **how: bool) -> list[Epoch]:
    """A healthy DistributedSampler with ``set_epoch``."""
    return [sharded(content[rng.permutation(size.rows)], size.workers, **how) for _ in range(size.epochs)]


def fixed_order(size: Size, rng: np.random.Generator, content: Ids) -> list[Epoch]:
    """The same without ``set_epoch``: every epoch in the same order."""
    return [sharded(content[rng.permutation(size.rows)], size.workers)] * size.epochs


def fixed_shards(size: Size, rng: np.random.Generator, content: Ids) -> list[Epoch]:
    """Each worker keeps its shard and shuffles it anew for every epoch."""
    shards = sharded(content[rng.permutation(size.rows)], size.workers, drop_last=True)
    return [[rng.permutation(shard) for shard in shards] for _ in range(size.epochs)]


def accelerate(size: Size, rng: np.random.Generator, content: Ids) -> list[Epoch]:
    """Batches dealt round robin, with padding."""
    return [even_batches(content[rng.permutation(size.rows)], size.workers, size.batch) for _ in range(size.epochs)]


def with_replacement(size: Size, rng: np.random.Generator, content: Ids) -> list[Epoch]:
    """Every worker draws from all rows with replacement."""
    per_worker = size.rows // size.workers
    return [
        [content[rng.integers(size.rows, size=per_worker)] for _ in range(size.workers)] for _ in range(size.epochs)
    ]


def weighted(size: Size, rng: np.random.Generator, content: Ids) -> list[Epoch]:
    """The same with weights that differ a thousandfold."""
    weights = 10 ** rng.uniform(-3, 0, size.rows)
    per_worker = size.rows // size.workers
    return [
        [content[rng.choice(size.rows, per_worker, p=weights / weights.sum())] for _ in range(size.workers)]
        for _ in range(size.epochs)
    ]


def own_sources(size: Size, rng: np.random.Generator, content: Ids) -> list[Epoch]:
    """Half of the workers draw, with replacement, from a source a tenth as large as that of the others."""
    per_worker = size.rows // size.workers
    small = max(size.rows // 10, 1)
    half = size.workers // 2
    return [
        [
            content[rng.integers(small, size=per_worker)]
            if worker < half
            else content[small + rng.integers(size.rows - small, size=per_worker)]
            for worker in range(size.workers)
        ]
        for _ in range(size.epochs)
    ]


HEALTHY: dict[str, Callable[[Size, np.random.Generator, Ids], list[Epoch]]] = {
    "distributed sampler": distributed,
    "distributed sampler, drop_last": lambda size, rng, content: distributed(size, rng, content, drop_last=True),
    "no set_epoch": fixed_order,
    "fixed shards, shuffled inside": fixed_shards,
    "padded batches (accelerate)": accelerate,
    "with replacement": with_replacement,
    "weighted with replacement": weighted,
    "own sources, with replacement": own_sources,
}


def one_seed_each(size: Size, rng: np.random.Generator, odd: Sequence[int]) -> list[Epoch]:
    """Workers in ``odd`` deal themselves a part of an order of their own (settings S1-2: one, S1-3: all)."""
    epochs: list[Epoch] = []
    for _ in range(size.epochs):
        epoch = sharded(rng.permutation(size.rows), size.workers)
        for worker in odd:
            epoch[worker] = sharded(rng.permutation(size.rows), size.workers)[worker]
        epochs.append(epoch)
    return epochs


def same_batches(size: Size, rng: np.random.Generator) -> list[Epoch]:
    """All workers read all rows in one order (setting S1-1 read as the same data)."""
    return [[order] * size.workers for order in (rng.permutation(size.rows) for _ in range(size.epochs))]


def declared_for(kind: str, size: Size, *, known: bool) -> DeclaredSampling:
    """What the workers of a healthy run of ``kind`` declare: all that a sampler shows, or nothing."""
    if not known:
        return DeclaredSampling({rank: {} for rank in range(size.workers)})
    sampler = "DistributedSampler" if "distributed" in kind or kind == "no set_epoch" else "Sampler"
    split = sampler == "DistributedSampler"
    shard = "fixed shards" in kind
    facts = {
        "sampler": sampler,
        "dataset_len": size.rows // size.workers if shard else size.rows,
        "batch_size": size.batch,
        "shuffle": True,
        "num_replicas": size.workers if split else None,
        "seed": 0 if split else None,
    }
    return DeclaredSampling(
        {
            rank: {**facts, "sampler_rank": rank if split else None, "rows_digest": f"shard {rank}" if shard else ""}
            for rank in range(size.workers)
        }
    )


def seeds_for(size: Size, odd: Sequence[int]) -> DeclaredSampling:
    """What the workers of ``one_seed_each`` declare."""
    facts = {
        "sampler": "DistributedSampler",
        "dataset_len": size.rows,
        "batch_size": size.batch,
        "shuffle": True,
        "num_replicas": size.workers,
    }
    return DeclaredSampling(
        {rank: {**facts, "sampler_rank": rank, "seed": 1 + rank if rank in odd else 0} for rank in range(size.workers)}
    )


def _mixed(ids: Ids) -> NDArray[np.uint64]:
    """Ids spread over 64 bits, one to one: multiplication by an odd number (Fibonacci hashing)."""
    return ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
