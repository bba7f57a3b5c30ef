"""Which indices the samplers of DataLoaders draw, in each pass: samples by their places, whatever an augmentation makes
of them. They are drawn in the main process, also for loader workers, so that nothing has to be asked of these.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trueline.capture.model.patches import Patch, calling
from trueline.schema.safe_logger import SafeLogger

_log = SafeLogger()

MAX_LENGTH = 1 << 24
"""Samples of a data set, one byte each, that are counted."""
MAX_DATASETS = 8
"""Data sets that are counted at a time: of more, as of many evaluations, those that began last."""
MAX_PASSES = 8
"""Passes over a data set, the first, that are counted."""
HEAD = 256
"""Indices at the beginning of a pass by which its order is known."""
FEWEST = 32
"""Indices of a pass of fewer, whose order a shuffle may draw twice: of 32 it does once in 1e35."""
MAX_BITMAP = 1 << 14
"""Samples of a data set of which it is kept which were drawn: of a larger one how many."""


@dataclass
class IndexPass:
    """One pass: how many indices were ``drawn``, how often each, and the first of them; whether it came to its end."""

    counts: NDArray[np.uint8] | None
    drawn: int = 0
    head: list[int] = field(default_factory=list[int])
    ended: bool = False
    different: int = 0

    def end(self) -> None:
        """It draws no more: of the counts only their number is needed from here on."""
        self.different, self.ended, self.counts = self._different(), True, None

    def facts(self) -> dict[str, Any]:
        """As of ``RankEnv.data``: ``order`` is a digest of the first indices, '' where these are too few."""
        head = np.array(self.head[:HEAD], dtype=np.int64)
        is_known = len(head) == HEAD or (self.ended and len(head) >= FEWEST)
        return {
            "drawn": self.drawn,
            "different": self._different(),
            "ended": self.ended,
            "order": xxhash.xxh3_64_hexdigest(head.tobytes()) if is_known else "",
        }

    def _different(self) -> int:
        return self.different if self.counts is None else int(np.count_nonzero(self.counts))


class DataSetIndices:
    """The passes over one data set of ``length`` samples."""

    def __init__(self, dataset: Any, length: int) -> None:
        self.length = length
        self.passes: list[IndexPass] = []
        self.is_known = True
        self._all = np.zeros(length, dtype=np.bool_)
        self._ref: weakref.ref[Any] | None = None
        try:
            self._ref = weakref.ref(dataset)
        except TypeError:  # a list or another thing without weak references
            self._ref = None

    def is_of(self, dataset: Any, length: int) -> bool:
        """False where another object has the place in memory that the data set had."""
        return length == self.length and (self._ref is None or self._ref() is dataset)

    @property
    def num_ended(self) -> int:
        """Passes that came to their end."""
        return sum(index_pass.ended for index_pass in self.passes)

    def begin(self) -> IndexPass | None:
        """The pass that begins; None beyond ``MAX_PASSES``."""
        if len(self.passes) == MAX_PASSES or not self.is_known:
            return None
        self.passes.append(IndexPass(np.zeros(self.length, dtype=np.uint8)))
        return self.passes[-1]

    def add(self, index_pass: IndexPass, index: Any) -> None:
        """Count what a sampler has returned: an index or a list of them; of anything else nothing is known."""
        indices = [index] if isinstance(index, int) else index
        if isinstance(indices, (list, tuple)) and not indices:
            return
        counts = index_pass.counts
        if counts is None or not isinstance(indices, (list, tuple)) or not isinstance(indices[0], (int, np.integer)):
            self.is_known = False
            return
        try:
            batch = np.asarray(indices)
        except (TypeError, ValueError):  # of several kinds
            self.is_known = False
            return
        if batch.ndim != 1 or batch.dtype.kind not in "iu" or batch.min() < 0 or batch.max() >= self.length:
            self.is_known = False
            return
        # beyond 255 it does not matter how often
        np.add.at(counts, batch[counts[batch] < 255], 1)
        self._all[batch] = True
        index_pass.drawn += len(batch)
        if len(index_pass.head) < HEAD:
            index_pass.head += batch.tolist()

    def facts(self) -> dict[str, Any]:
        """As of ``RankEnv.data``: the ended passes, and those of all indices that were drawn, as bits in hex where the
        data set is small. Empty where nothing is known.
        """
        if not self.is_known or not self.passes:
            return {}
        facts = {"passes": [index_pass.facts() for index_pass in self.passes]}
        small = self.length <= MAX_BITMAP
        return facts | ({"bits": np.packbits(self._all).tobytes().hex()} if small else {})


_Going = tuple[Any, DataSetIndices | None, IndexPass | None]
"""The iterator of the sampler, the data set, and the pass: None where it is not counted."""


class _Indices:
    """Counts for all DataLoaders as long as somebody listens."""

    def __init__(self) -> None:
        self._listeners = weakref.WeakSet[Any]()
        self._datasets: dict[int, DataSetIndices] = {}
        self._pass_of: weakref.WeakKeyDictionary[Any, _Going]
        self._pass_of = weakref.WeakKeyDictionary()
        self._latest: weakref.ref[Any] | None = None
        self._patch = Patch(_BaseDataLoaderIter, "_next_index", calling(self._next_index))

    def listen(self, listener: Any) -> None:
        """Count from now on, as long as this one, or another, lives and has not left."""
        self._listeners.add(listener)
        self._patch.install()

    def leave(self, listener: Any) -> None:
        """Stop counting with the last listener."""
        self._listeners.discard(listener)
        if not self._listeners:
            self._patch.remove()
            self._datasets.clear()

    @property
    def latest(self) -> Any:
        """The iterator of a DataLoader that drew last; None where it is gone."""
        return None if self._latest is None else self._latest()

    def of(self, dataset_id: int) -> DataSetIndices | None:
        """Those of a data set, by its ``id``."""
        return self._datasets.get(dataset_id)

    def _next_index(self, original: Any, iterator: Any) -> Any:
        try:
            index = original(iterator)
        except StopIteration:
            self._guarded(self._ended, iterator)
            raise
        self._guarded(self._drew, iterator, index)
        return index

    def _guarded(self, call: Any, *args: Any) -> None:
        if not self._listeners:
            return
        try:
            call(*args)
        except Exception:
            _log.exception("trueline: counting the indices of a DataLoader failed and has ended")
            self._listeners.clear()
            self._datasets.clear()

    def _drew(self, iterator: Any, index: Any) -> None:
        self._latest = weakref.ref(iterator)
        going = self._pass_of.get(iterator)
        sampler = iterator._sampler_iter  # another one in each pass of an iterator that lives on
        if going is None or going[0] is not sampler:
            going = self._begun(iterator, sampler)
        _, indices, index_pass = going
        if indices is not None and index_pass is not None and indices.is_known:
            indices.add(index_pass, index)

    def _begun(self, iterator: Any, sampler: Any) -> _Going:
        dataset, going = iterator._dataset, (sampler, None, None)
        self._pass_of[iterator] = going
        length = 0 if isinstance(dataset, IterableDataset) else length_of(dataset)
        if not 0 < length <= MAX_LENGTH:
            return going
        indices = self._datasets.get(id(dataset))
        if indices is None or not indices.is_of(dataset, length):
            indices = self._datasets[id(dataset)] = DataSetIndices(dataset, length)
            if len(self._datasets) > MAX_DATASETS:
                del self._datasets[next(iter(self._datasets))]
        going = self._pass_of[iterator] = (sampler, indices, indices.begin())
        return going

    def _ended(self, iterator: Any) -> None:
        going = self._pass_of.pop(iterator, None)
        if going is not None and going[0] is iterator._sampler_iter and going[2] is not None:
            going[2].end()


def length_of(dataset: Any) -> int:
    """Samples of a data set; 0 of one that does not tell."""
    try:
        return len(dataset)
    except Exception:  # none is defined, or raises: torch never asks where the sampler is the user's
        return 0


drawn_indices = _Indices()
