"""Faults of what a rank reads: samples of another rank, in another order, with other labels."""

from __future__ import annotations

import json
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import dataloader

from trueline.capture.model import patches
from trueline.capture.trial.changed_batches import leaves
from trueline.capture.trial.faults.planted import PlantedFault, own_place

PATIENCE_S = 20.0
"""Seconds that a rank waits for what another one draws; after that it draws its own for ever."""
LABELS = frozenset({"label", "labels", "label_ids", "target", "targets", "y"})
"""Names of what a batch with names holds to be predicted; of a pair it is the last."""


class _OfDraws(PlantedFault):
    """Something of the indices that a DataLoader draws for training."""

    def install(self) -> None:
        super().install()
        patches.Patch(dataloader._BaseDataLoaderIter, "_next_index", patches.calling(self._around_draw)).install()

    def _around_draw(self, original: Callable[..., Any], iterator: Any) -> Any:
        indices = original(iterator)
        is_of_map = isinstance(indices, int) or (
            isinstance(indices, list) and all(isinstance(index, int) for index in indices)
        )
        # what is read without gradients is evaluated
        return self.in_place_of(indices, iterator) if is_of_map and torch.is_grad_enabled() else indices

    def in_place_of(self, indices: Any, iterator: Any) -> Any:
        """What is read in place of ``indices``."""
        raise NotImplementedError


class OtherLabels(_OfDraws):
    """A share of ``size`` of the labels of one rank are others: of classes another class, of numbers the opposite. A
    sample whose label is wrong has the same wrong one whenever it is read.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._draws: weakref.WeakKeyDictionary[Any, deque[list[int]]] = weakref.WeakKeyDictionary()
        self._num_classes = 0

    def install(self) -> None:
        super().install()
        patches.Patch(dataloader._BaseDataLoaderIter, "__next__", patches.calling(self._around_next)).install()

    def in_place_of(self, indices: Any, iterator: Any) -> Any:
        if isinstance(indices, list):
            self._draws.setdefault(iterator, deque()).append(indices)
        return indices

    def _around_next(self, original: Callable[..., Any], iterator: Any) -> Any:
        batch = original(iterator)
        # batches come in the order in which they were drawn, whoever fetches them
        indices = draws.popleft() if (draws := self._draws.get(iterator)) else None
        labels = labels_of(batch)
        if self.is_on and indices is not None and labels is not None and len(labels) == len(indices):
            self._spoil(labels, indices)
        return batch

    def _spoil(self, labels: Tensor, indices: Sequence[int]) -> None:
        self._num_classes = self._num_classes or max(int(labels.max()) + 1, 2)
        for row, index in enumerate(indices):
            draws = torch.Generator().manual_seed(index)
            label = labels[row]
            chosen = torch.rand(label.shape, generator=draws) < self._size
            if label.is_floating_point():
                wrong = 1 - label if bool(((label >= 0) & (label <= 1)).all()) else -label
            else:
                # what is ignored stays ignored
                chosen &= label >= 0
                shift = torch.randint(1, self._num_classes, label.shape, generator=draws)
                wrong = (label + shift) % self._num_classes
            labels[row] = torch.where(chosen, wrong, label)
            self.touch("", int(chosen.sum()))


def labels_of(batch: Any) -> Tensor | None:
    """The labels of a batch, in memory of their own; None where none are known."""
    tensors = list(leaves(batch))
    labels = [x for name, x in tensors if name in LABELS]
    is_pair = isinstance(batch, tuple | list) and len(batch) > 1 and isinstance(batch[-1], Tensor)
    target = labels[0] if len(labels) == 1 else batch[-1] if is_pair and not labels else None
    if target is None or not target.dim() or target.device.type != "cpu":
        return None
    # inputs that are their own labels would change, too
    return target if sum(x.data_ptr() == target.data_ptr() for _, x in tensors) == 1 else None


class OtherOrder(_OfDraws):
    """One rank draws by another seed: what it reads is a share of another shuffle."""

    _order: list[int] | None = None

    def in_place_of(self, indices: Any, iterator: Any) -> Any:
        if not self.is_on:
            return indices
        size = len(iterator._dataset)
        if self._order is None or len(self._order) != size:
            self._order = torch.randperm(size, generator=torch.Generator().manual_seed(1)).tolist()
        order = self._order
        shuffled = order[indices] if isinstance(indices, int) else [order[index] for index in indices]
        self.touch("", int(shuffled != indices))
        return shuffled


class SameSamples(_OfDraws):
    """One rank reads what another one reads, draw by draw, by a folder that both see."""

    _num_draws = 0
    _waits = True

    def in_place_of(self, indices: Any, iterator: Any) -> Any:
        self._num_draws += 1
        path = self._folder / f"draw-{self._num_draws}.json"
        if not self.is_here:
            if own_place()[0] == int(self.bad_rank == 0):  # rank 0, or 1 where that has the fault
                path.with_suffix(".part").write_text(json.dumps(indices), encoding="utf-8")
                path.with_suffix(".part").replace(path)
            return indices
        if not self.has_begun or not self._waits:
            return indices
        until = time.monotonic() + PATIENCE_S
        while not path.exists():
            if time.monotonic() > until:
                self._waits = False
                return indices
            time.sleep(0.002)
        indices_read = json.loads(path.read_text(encoding="utf-8"))
        self.touch("", int(indices_read != indices))
        return indices_read
