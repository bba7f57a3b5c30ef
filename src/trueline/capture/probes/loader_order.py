"""What the order of a DataLoader's samples hangs on: whether it declares to shuffle, and what it will be drawn from.

Only attributes that samplers and streams hold themselves are read, and the state of a generator is copied: nothing is
drawn, and no method of theirs is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import xxhash
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from trueline.capture.model.contents import MAX_DEPTH, attributes

_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_INNER = ("dataset", "source_datapipe", "datapipe", "source", "stream")
"""Attributes in which a stream keeps the one that it reads."""
_NAMES = ("shuffl", "random")
"""Parts of the names of classes that shuffle."""


def samplers_of(loader: DataLoader[Any]) -> list[Any]:
    """Samplers, the outermost first; ``loader.sampler`` is a default, unused where a batch sampler was given."""
    chain: list[Any] = []
    holder: Any = loader
    while len(chain) < MAX_DEPTH:
        inner = getattr(holder, "batch_sampler", None)
        holder = getattr(holder, "sampler", None) if inner is None else inner  # their truth would call their __len__
        if holder is None:
            break
        chain.append(holder)
    return chain


def splits_processes(sampler: Any) -> bool:
    """True for one like Accelerate's ``BatchSamplerShard``, which splits batches between processes."""
    fields = attributes(sampler)
    return isinstance(fields.get("num_processes"), int) and isinstance(fields.get("process_index"), int)


def declared_shuffle(loader: DataLoader[Any]) -> bool | None:
    """True if a sampler, or a stream, says that it shuffles, or that its order is another one in each epoch; False if
    it says that it does not; None where nothing is said.
    """
    if isinstance(loader.dataset, IterableDataset):
        # the sampler that torch gives a stream is endless and the same for all: it tells nothing of an order
        declarations = [_stream_says(stream) for stream in _streams(loader.dataset)]
    else:
        declarations = [_sampler_says(sampler) for sampler in samplers_of(loader)]
    return True if True in declarations else False if False in declarations else None


def order_state(loader: DataLoader[Any]) -> str:
    """What the order of the pass that begins is drawn from, where the sampler is one of torch's that draws it: seed and
    epoch of a ``DistributedSampler``, a digest of the state of the generator of another. '' where that is not known.
    Two passes of one loader that begin with the same have the same order.
    """
    state = ""
    for sampler in samplers_of(loader):
        kind = type(sampler)
        # these pass on the order of the sampler within, which comes next
        if getattr(kind, "__iter__", None) is BatchSampler.__iter__ or splits_processes(sampler):
            continue
        if kind.__iter__ is DistributedSampler.__iter__:
            state = f"seed {sampler.seed}, epoch {sampler.epoch}" if sampler.shuffle else ""
        elif any(kind.__iter__ is drawing.__iter__ for drawing in _DRAWING):
            state = _generator_state(sampler.generator)
        else:
            return ""
    return state


def _generator_state(generator: torch.Generator | None) -> str:
    generator = torch.default_generator if generator is None else generator
    if generator.device.type != "cpu":
        return ""
    return xxhash.xxh3_64_hexdigest(generator.get_state().numpy().data)


def _sampler_says(sampler: Any) -> bool | None:
    if (flag := _flag_says(sampler)) is not None:
        return flag
    if isinstance(sampler, _DRAWING) or _is_named_so(sampler):
        return True
    if isinstance(sampler, SequentialSampler):
        return False
    # what is told the epoch has another order in each
    return True if "epoch" in attributes(sampler) and callable(getattr(type(sampler), "set_epoch", None)) else None


def _stream_says(stream: Any) -> bool | None:
    fields = attributes(stream)
    if fields.get("_shuffling") is not None:  # of the library datasets
        return True
    if (flag := _flag_says(stream)) is not None:
        return flag
    return True if _is_named_so(stream) else None


def _flag_says(holder: Any) -> bool | None:
    """What its own ``shuffle`` (a flag, or the size of a buffer) says."""
    flags = [
        bool(value)
        for name, value in attributes(holder).items()
        if "shuffle" in name and "seed" not in name and type(value) in (bool, int)
    ]
    return any(flags) if flags else None


def _is_named_so(holder: Any) -> bool:
    return any(part in type(holder).__name__.lower() for part in _NAMES)


def _streams(stream: Any) -> Iterator[Any]:
    """The stream, and those that it reads."""
    for _ in range(2 * MAX_DEPTH):
        yield stream
        fields = attributes(stream)
        stream = next((fields[name] for name in _INNER if fields.get(name) is not None), None)
        if stream is None:
            return
