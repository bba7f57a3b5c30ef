"""Norms and sketches by the compiled kernel: one call for all gradients that are at hand, and one pass over each.

Letters: P parameters, n gradients of a call in m groups, k sketch length, T columns of the kernel's table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from trueline.tensor.native import Native

MAX_PREPARED = 4
"""Gradients whose preparations are cached, as a multiple of all parameters; the cache is cleared when it holds more, as
where experts are left out at random and every call has another set of gradients.
"""

_FLOATS = {torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16", torch.float32: "FLOAT32", torch.float64: "FLOAT64"}


@dataclass(frozen=True)
class Measured:
    """What one call saw of n gradients, ``indices`` of the parameters (``positions``, int64 [n], on the device), in m
    ``groups`` (int64 [m]): squared norms float64 ``norm2`` [n] and ``sketch`` [m, k].
    """

    indices: tuple[int, ...]
    positions: Tensor
    groups: Tensor
    norm2: Tensor
    sketch: Tensor

    @property
    def sketches(self) -> dict[int, Tensor]:
        """The sketch, float64 [k], of every group that took part; reads ``groups`` on the host."""
        groups = cast(list[int], self.groups.tolist())  # pyright: ignore[reportUnknownMemberType]
        return dict(zip(groups, self.sketch.unbind(0), strict=True))


@dataclass(frozen=True)
class Rows:
    """How P parameters are cut: C elements of one shard (``widths``), their rows of k, and the tail that is left; where
    the tail of the first shard starts among those of its group (``tail_starts``); the signs of the rows of a parameter
    (``signs``) and of those of its group's tails (``tail_signs``), float32, which are kept alive here.
    """

    widths: Sequence[int]
    rows: Sequence[int]
    tails: Sequence[int]
    tail_starts: Sequence[int]
    signs: Sequence[Tensor]
    tail_signs: Sequence[Tensor]


@dataclass(frozen=True)
class _Prepared:
    """What stays the same between calls about the same gradients: ``slots`` are the places of their groups among
    ``groups``, the rest is as in ``Measured``.
    """

    indices: tuple[int, ...]
    positions: Tensor
    groups: Tensor
    slots: tuple[int, ...]


class NativeSketch:
    """Measures gradients in host memory; ``group_of`` has the group of each parameter. Norms and sketches are made in
    float64 throughout, and are the same on every machine.
    """

    def __init__(self, native: Native, cut: Rows, group_of: Sequence[int], *, k: int) -> None:
        self._kernel = native.kernel
        self._kinds = {dtype: getattr(native.kernel, name) for dtype, name in _FLOATS.items()}
        self._cut = cut
        self._group_of = tuple(group_of)
        self._k = k
        addresses = ([signs.data_ptr() for signs in tensors] for tensors in (cut.signs, cut.tail_signs))
        self._table_PT = np.array([cut.widths, cut.rows, cut.tails, cut.tail_starts, *addresses], np.int64).T.copy()
        self._prepared: dict[tuple[int, ...], _Prepared] = {}

    def measure(self, gradients: Sequence[tuple[int, Tensor]], *, first_shard: int, num_shards: int) -> Measured | None:
        """Norms and sketches of (position, tensor) pairs, each of which has so many shards, in logical order; None
        where one is of a dtype that the kernel does not know.

        Raises ValueError where a tensor has not the elements that were announced.
        """
        prepared = self._prepared_for(tuple(index for index, _ in gradients))
        arguments: list[int] = []
        copies: list[Tensor] = []
        for (index, x), slot in zip(gradients, prepared.slots, strict=True):
            kind = self._kinds.get(x.dtype)
            if kind is None:
                return None
            if not x.is_contiguous() or x.is_neg():
                x = x.detach().resolve_neg().contiguous()
                copies.append(x)
            arguments += (index, slot, kind, x.data_ptr(), x.numel())
        norm2_n, sketch_mk = np.zeros(len(prepared.slots)), np.zeros((len(prepared.groups), self._k))
        self._kernel.sketch(self._table_PT, arguments, self._k, first_shard, num_shards, norm2_n, sketch_mk)
        norm2, sketch = torch.from_numpy(norm2_n), torch.from_numpy(sketch_mk)  # pyright: ignore[reportUnknownMemberType]
        return Measured(prepared.indices, prepared.positions, prepared.groups, norm2, sketch)

    def _prepared_for(self, indices: tuple[int, ...]) -> _Prepared:
        prepared = self._prepared.get(indices)
        if prepared is None:
            if sum(map(len, self._prepared)) > MAX_PREPARED * len(self._group_of):
                self._prepared.clear()
            groups = sorted({self._group_of[index] for index in indices})
            slots = tuple(groups.index(self._group_of[index]) for index in indices)
            prepared = self._prepared[indices] = _Prepared(indices, _ints(indices), _ints(groups), slots)
        return prepared


def _ints(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)
