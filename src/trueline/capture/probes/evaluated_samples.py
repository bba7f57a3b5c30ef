"""Which samples are read in evaluation: their digests, and the indices of the data set that the loader is made of.

Letters: B samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset

from trueline.capture.probes.around_update.sampling import MAX_WAITING
from trueline.capture.probes.batch import read_batch
from trueline.capture.probes.dataloader import rows_digest
from trueline.capture.probes.drawn_indices import drawn_indices, length_of
from trueline.schema.columns.evaluated import EvaluatedBatch, EvaluatedPart, evaluated_text

FIRST = 4
"""Evaluations that are looked at, whenever they come; then those at twice the step of the one before."""
MAX_SAMPLES, MAX_BATCHES = 8192, 512
"""Samples and forward passes of an evaluation that are looked at, the first: 64 KiB of digests."""
MAX_INDICES = 1 << 22
"""Indices of a part of a data set that are compared, four bytes each."""
_DEPTH = 4

_Indices = NDArray[np.int64]


class EvaluatedSamples:
    """Takes digests of the batches of some evaluations, and knows of the loader that a batch came from last which part
    of a data set it reads. ``batches`` wait to be taken, each with its int64 [B] digests.
    """

    def __init__(self) -> None:
        self._step: int | None = None
        self._looks = False
        self._num_evaluations = self._next_step = self._rows = self._num_batches = 0
        self.batches: list[tuple[EvaluatedBatch, Tensor]] = []
        self._sources: dict[tuple[int, int], int] = {}
        self._trained = set[int]()
        self._parts: list[EvaluatedPart] = []
        self._new: dict[int, tuple[Any, _Indices]] = {}

    def look(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, step: int) -> None:
        """A forward pass in evaluation mode reads these, while ``step`` is open."""
        if step != self._step:
            self._step, self._rows, self._num_batches = step, 0, 0
            self._looks = self._num_evaluations < FIRST or step >= self._next_step
            if self._looks:
                self._num_evaluations, self._next_step = self._num_evaluations + 1, 2 * step
        full = self._rows >= MAX_SAMPLES or self._num_batches >= MAX_BATCHES
        if not self._looks or full or len(self.batches) >= MAX_BATCHES * MAX_WAITING:
            return
        with torch.inference_mode(False), torch.no_grad():
            batch = read_batch(*args, **kwargs)
        if batch is not None and batch.samples is not None:
            samples = batch.samples[: MAX_SAMPLES - self._rows]
            self._rows, self._num_batches = self._rows + len(samples), self._num_batches + 1
            self.batches.append((EvaluatedBatch(step, self._source(), len(samples)), samples))

    def take(self, *, trains: bool) -> tuple[str, Tensor] | None:
        """The string of the column and, int64 [B], the digests, of the batches since the last call; None without any.
        ``trains``: an update is about to be made.
        """
        iterator = drawn_indices.latest
        if not self.batches:
            return None
        if trains and iterator is not None:
            self._note_training(iterator)
        batches, self.batches = self.batches, []
        parts, self._parts = self._parts, []
        rows = [
            EvaluatedBatch(batch.step, 0 if batch.source in self._trained else batch.source, batch.rows)
            for batch, _ in batches
        ]
        return evaluated_text(rows, parts), torch.cat([samples for _, samples in batches])

    def _source(self) -> int:
        iterator = drawn_indices.latest
        if iterator is None:
            return 0
        source = self._number(iterator)
        if source not in self._trained and source not in self._new and (part := _part_of(iterator)) is not None:
            self._new[source] = part
        return source

    def _number(self, iterator: Any) -> int:
        indices = _sampler_indices(iterator)
        key = id(iterator._dataset), 0 if indices is None else id(indices)
        return self._sources.setdefault(key, len(self._sources) + 1)

    def _note_training(self, iterator: Any) -> None:
        """The loader that was drawn from last, as an update begins, is that of the training."""
        self._trained.add(self._number(iterator))
        new, self._new = self._new, {}
        new = {source: part for source, part in new.items() if source not in self._trained}
        trained = _part_of(iterator) if new else None
        if trained is None:
            return
        whole, indices = trained
        digest = ""
        for source, (other, part) in new.items():
            digest = digest or rows_digest(whole)
            is_same = other is whole or bool(digest and rows_digest(other) == digest)
            if is_same and length_of(other) == length_of(whole):
                common = len(np.intersect1d(part, indices))
                self._parts.append(EvaluatedPart(source, len(part), common, len(indices)))


def _part_of(iterator: Any) -> tuple[Any, _Indices] | None:
    """The data set that an iterator reads a part of, and the different indices; None where it is no part."""
    dataset, indices = iterator._dataset, _as_indices(_sampler_indices(iterator))
    is_part = indices is not None
    for _ in range(_DEPTH):
        if not isinstance(dataset, Subset):
            break
        outer = _as_indices(dataset.indices)
        if outer is None:
            return None
        indices, dataset, is_part = outer if indices is None else outer[indices], dataset.dataset, True
    return (dataset, np.unique(indices)) if is_part and indices is not None else None


def _as_indices(indices: Any) -> _Indices | None:
    if type(indices) not in (list, tuple, range, np.ndarray, Tensor) or len(indices) > MAX_INDICES:
        return None
    values = np.asarray(indices)
    return values.astype(np.int64) if values.ndim == 1 and values.dtype.kind in "iu" else None


def _sampler_indices(iterator: Any) -> Any:
    """The indices that a sampler was made with, as ``SubsetRandomSampler`` keeps them; None without."""
    sampler = iterator._index_sampler
    for _ in range(_DEPTH):
        indices = getattr(sampler, "indices", None)
        if indices is not None:
            return indices
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return None
