"""What the training DataLoader shows: the epoch, the sampler's settings, and a digest of rows held in memory.

The dataset is never indexed (its ``__getitem__`` may draw random numbers or open files); only containers that it
holds are looked at: lists, tuples, arrays, tensors, and ``Subset`` indices. One that holds None may be a cache that
each rank fills as it goes, so it shows nothing.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from trueline.capture.model import patches
from trueline.capture.model.contents import MAX_DEPTH, elements
from trueline.capture.probes.base import FactProbe, Moment, Step
from trueline.capture.probes.drawn_indices import drawn_indices, length_of
from trueline.capture.probes.loader_order import declared_shuffle, order_state, samplers_of, splits_processes
from trueline.capture.probes.loader_workers import copied_generators, seeds_workers_alike, workers_draw
from trueline.capture.probes.stored_rows import StoredRows
from trueline.tensor.memory import bits_of

ROWS_LOOKED_AT = 64
"""Rows, evenly spaced, that go into the digest of an in-memory dataset."""
MAX_EPOCHS = 8
"""Epochs, the first, of which it is noted what their order is drawn from: each rewrites the environment."""


class EpochProbe(FactProbe):
    """The columns ``epoch``, how often the training data was iterated before, and ``loader_batches``, and the fact
    ``data``, which describes the loader that did it.

    The training loader is the one iterated last before the first training step of those that are not at their end by
    then, as an evaluation is; loaders over the same dataset object count as the same (people build one per epoch).
    """

    name = "data loader"
    moments: tuple[Moment, ...] = ("forward", "update", "updated")

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.epoch: int | None = None
        self._dataset: int | None = None  # its ``id``: neither it nor a loader is kept alive
        self._last: weakref.ref[DataLoader[Any]] | None = None
        self._count: dict[int, int] = {}
        self._orders: dict[int, list[str]] = {}
        self._stored: dict[int, StoredRows] = {}
        self._step_facts: dict[str, Any] | None = None
        self._open: list[tuple[weakref.ref[Any], DataLoader[Any]]] = []
        self._iterator: weakref.ref[Any] | None = None
        self._seeds: list[str] | None = None
        self._seed_due = False
        self._num_passes = 0
        drawn_indices.listen(self)
        patches.loader_iterator.add(self._at_iterator)
        patches.loader_iter.add(self._at_iter)

    @property
    def between(self) -> tuple[Moment, ...]:
        """The end of the step alone, once the training loader is known."""
        return self.moments if self._dataset is None else self.moments[-1:]

    def detach(self) -> None:
        patches.loader_iter.remove(self._at_iter)
        patches.loader_iterator.remove(self._at_iterator)
        drawn_indices.leave(self)

    def follow(self, earlier: EpochProbe) -> None:
        """Go on from what one has seen that has listened since before watching began."""
        orders = {key: list(order) for key, order in earlier._orders.items()}
        copies = {"_count": dict(earlier._count), "_open": list(earlier._open), "_orders": orders}
        vars(self).update(vars(earlier) | copies)

    def take(self, moment: Moment, step: Step) -> dict[str, int | None]:
        if moment == "updated":
            if self._seed_due:
                self._note_seed()
            columns = {} if self.epoch is None else {"epoch": self.epoch}
            if not step.sampled:
                return columns
            self._note_passes()
            return columns | self._batches()
        self.at_training_step()
        step.facts["data"] = self.facts
        self._step_facts = step.facts
        return {}

    def at_training_step(self) -> None:
        """A training forward pass begins: the loader iterated last, if none is known yet, is the training loader."""
        last = None if self._dataset is not None or self._last is None else self._last()
        if last is not None:
            # the iterator of a `for` goes as it ends; that of the batches that are trained on is still there
            going = [pair for pair in self._open if pair[0]() is not None]
            # a framework may begin the training's before an evaluation that it leaves half way
            latest = drawn_indices.latest
            going = [pair for pair in going if pair[0]() is latest] or going
            self._iterator, loader = going[-1] if going else (None, last)
            self._open = []
            self._dataset = id(loader.dataset)
            self.epoch = self._count[self._dataset] - 1
            self.facts = describe_loader(loader) | {"orders": tuple(self._orders[self._dataset])}
            if self.facts.get("workers_draw"):
                self._seeds, self._seed_due = [], True

    def _note_passes(self) -> None:
        """Of the indices that were drawn, once another pass over the training data has come to its end."""
        indices = None if self._dataset is None else drawn_indices.of(self._dataset)
        if indices is None or self._step_facts is None or indices.num_ended == self._num_passes:
            return
        self._num_passes = indices.num_ended
        self.facts = self._step_facts["data"] = self.facts | {"indices": indices.facts()}

    def _batches(self) -> dict[str, int | None]:
        iterator = None if self._iterator is None else self._iterator()
        yielded = getattr(iterator, "_num_yielded", None)
        return {"loader_batches": yielded} if isinstance(yielded, int) else {}

    def _at_iterator(self, iterator: Any, loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
        self._open = [pair for pair in self._open if pair[0]() is not None]
        if self._dataset is None:
            self._open.append((weakref.ref(iterator), loader))
        elif id(loader.dataset) == self._dataset:
            self._iterator = weakref.ref(iterator)

    def _at_iter(self, loader: DataLoader[Any]) -> None:
        key = id(loader.dataset)
        self._count[key] = self._count.get(key, 0) + 1
        self._last = weakref.ref(loader)
        orders = self._orders.setdefault(key, [])
        if self._dataset in (None, key):
            self._stored.setdefault(key, StoredRows()).look(loader)
        if len(orders) < MAX_EPOCHS:
            orders.append(order_state(loader))
        if key == self._dataset:
            self.epoch = self._count[key] - 1
            if self.epoch < MAX_EPOCHS and self._step_facts is not None:
                # another object: what has changed is told by comparing
                stored = {"stored_changes": changes} if any(changes := self._stored[key].changes) else {}
                self.facts = self._step_facts["data"] = self.facts | {"orders": tuple(orders)} | stored
                self._seed_due = self._seeds is not None

    def _note_seed(self) -> None:
        """Of the epoch that has begun, what torch seeds the loader's workers by."""
        self._seed_due = False
        seed = getattr(None if self._iterator is None else self._iterator(), "_base_seed", None)
        if self._seeds is not None and self._step_facts is not None:
            self._seeds.append(f"{seed:x}" if isinstance(seed, int) else "")
            self.facts = self._step_facts["data"] = self.facts | {"worker_seeds": tuple(self._seeds)}


def describe_loader(loader: DataLoader[Any]) -> dict[str, Any]:
    """The facts of ``RankEnv.data``; what cannot be read is left out."""
    dataset, sampler = loader.dataset, _sampler(loader)
    facts: dict[str, Any] = {
        "dataset_type": type(dataset).__name__,
        "sampler": type(sampler).__name__ if sampler is not None else "",
        "batch_size": loader.batch_size,
        "drop_last": bool(loader.drop_last),
        "num_workers": loader.num_workers,
        "stream": isinstance(dataset, IterableDataset),
        "rows_digest": rows_digest(dataset),
    }
    if not isinstance(dataset, IterableDataset) and (length := length_of(dataset)):
        facts["dataset_len"] = length
    # without automatic batching the sampler itself may yield batches
    together = getattr(loader.batch_sampler, "batch_size", None) if loader.batch_size is None else loader.batch_size
    if isinstance(together, int):
        facts["batch_rows"] = together
    if loader.num_workers:
        facts |= {
            "persistent_workers": bool(loader.persistent_workers),
            "copied_generators": copied_generators(loader),
            "workers_seeded_alike": seeds_workers_alike(loader),
            "workers_draw": workers_draw(loader),
        }
    if (shuffles := declared_shuffle(loader)) is not None:
        facts["shuffles"] = shuffles
    if isinstance(dataset, Subset):
        facts |= {"part_of": rows_digest(dataset.dataset), "drawn": _are_drawn(dataset)}
    keys = {"num_replicas": "num_replicas", "rank": "sampler_rank", "seed": "seed", "shuffle": "shuffle"}
    if splits_processes(sampler):
        keys = {"num_processes": "num_replicas", "process_index": "sampler_rank"}
    settings = {key: getattr(sampler, name, None) for name, key in keys.items()}
    return facts | {key: value for key, value in settings.items() if isinstance(value, (bool, int))}


def _are_drawn(part: Subset[Any]) -> bool:
    """True if the first rows of the part are neither in a row nor evenly spaced: somebody drew them."""
    indices = np.asarray(list(itertools.islice(part.indices, ROWS_LOOKED_AT)))
    return indices.dtype.kind in "iu" and len(indices) > 2 and bool(np.any(np.diff(indices, n=2)))


def rows_digest(dataset: Any) -> str:
    """Hex digest of what an in-memory dataset holds, '' where it cannot be known without indexing it."""
    if isinstance(dataset, Subset):
        indices = _content(np.asarray(list(dataset.indices)))
        return xxhash.xxh3_64_hexdigest((indices or b"") + rows_digest(dataset.dataset).encode())
    rows = _rows(dataset)
    if rows is None:
        return ""
    length = len(rows)
    # all over the data, both ends among them: data sets that share a beginning differ
    picked = sorted(
        {round(index * (length - 1) / max(ROWS_LOOKED_AT - 1, 1)) for index in range(min(ROWS_LOOKED_AT, length))}
    )
    contents = [_content(rows[index]) for index in picked]
    if any(content is None for content in contents):
        return ""
    return xxhash.xxh3_64_hexdigest(b"|".join([str(length).encode(), *(content or b"" for content in contents)]))


def _sampler(loader: DataLoader[Any]) -> Any:
    """The sampler that splits the data between ranks, else the innermost."""
    chain = samplers_of(loader)
    splitting = [sampler for sampler in chain if hasattr(sampler, "num_replicas") or splits_processes(sampler)]
    return next(iter(splitting or reversed(chain)), None)


def _rows(dataset: Any) -> Any:
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[0]
    if type(dataset) in (list, tuple, np.ndarray, torch.Tensor):
        return dataset
    length = length_of(dataset)
    attributes = getattr(dataset, "__dict__", {})
    for value in attributes.values():
        if type(value) in (list, tuple, np.ndarray, torch.Tensor) and len(value) == length > 0:
            return value
    return None


def _content(value: Any, depth: int = 0) -> bytes | None:
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, torch.Tensor):
        dense = value.detach().cpu().contiguous()
        return bits_of(dense, np.dtype(np.uint8)).tobytes() if dense.numel() else b""
    if isinstance(value, np.ndarray):
        return None if value.dtype == object else np.ascontiguousarray(value).tobytes()
    if isinstance(value, (str, int, float, bool, bytes, np.generic)):
        return repr(value).encode()
    if issubclass(type(value), dict):
        value = [item for pair in dict.items(value) for item in pair]
    if issubclass(type(value), (list, tuple)):
        parts = [_content(item, depth + 1) for item in elements(value)]
        return None if any(part is None for part in parts) else b",".join(part or b"" for part in parts)
    return None
