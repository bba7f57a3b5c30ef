"""Whether what a data set holds in memory changes from one pass over it to the next, and how.

R rows that are looked at, E elements of each. Nothing of the data set's own code is run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from trueline.capture.model.contents import attributes, elements
from trueline.capture.probes.drawn_indices import length_of

MAX_ROWS, MAX_ELEMENTS, MAX_FIELDS = 16, 1024, 4
"""Rows, evenly spaced, elements of each, and fields of a data set or a row that are looked at."""
MAX_PASSES = 4
"""Passes, the first, in front of which rows are looked at."""
FEWEST = 8
"""Numbers by which a line is known."""
SAME = 1e-3
"""Share of the largest number by which none may differ where rows are as they were, but for rounding of float16."""
EXACT = 1e-5
"""Largest distance from a line, beside the spread, that rounding of float16 and better explains after some passes."""
_DEPTH = 4

_Row = NDArray[np.float64] | list[Any] | str
_Rows = dict[str, list[_Row]]


class StoredRows:
    """The rows of one data set, by the name of the field that holds them, as the pass before began. ``changes`` has of
    each later pass what had changed by then.
    """

    def __init__(self) -> None:
        self.changes: list[list[dict[str, Any]]] = []
        self._rows: _Rows | None = None

    def look(self, loader: DataLoader[Any]) -> None:
        """A pass over the data set of ``loader`` begins. Its workers change copies, which go with them."""
        if len(self.changes) >= MAX_PASSES:
            return
        rows = {} if loader.num_workers else dict(_stored(loader.dataset))
        if self._rows is not None:
            names = [name for name in rows if len(self._rows.get(name, ())) == len(rows[name])]
            changes = [_change(name, self._rows[name], rows[name]) for name in names]
            self.changes.append([change for change in changes if change is not None])
        self._rows = rows


def _stored(dataset: Any) -> Iterator[tuple[str, list[_Row]]]:
    for _ in range(_DEPTH):
        if isinstance(dataset, Subset):
            dataset = dataset.dataset
    if isinstance(dataset, IterableDataset):
        return
    length = length_of(dataset)
    if isinstance(dataset, TensorDataset):
        fields = {f"tensors[{number}]": x for number, x in enumerate(dataset.tensors)}
    elif type(dataset) in (list, tuple):
        fields = {"": dataset}
    else:
        fields = attributes(dataset)
    holders = [
        (name, value)
        for name, value in fields.items()
        if type(value) in (list, tuple, np.ndarray, torch.Tensor) and _len(value) == length > 0
    ]
    for name, value in holders[:MAX_FIELDS]:
        picked = sorted({round(at * (length - 1) / (MAX_ROWS - 1)) for at in range(MAX_ROWS)})
        parts = [dict(_parts(value[place])) for place in picked]
        for part in list(parts[0])[:MAX_FIELDS]:
            rows = [row[part] for row in parts if part in row]
            if len(rows) == len(parts):
                yield f"{name}{part}", rows


def _len(value: Any) -> int:
    return 0 if isinstance(value, torch.Tensor | np.ndarray) and not value.ndim else len(value)


def _parts(row: Any) -> Iterator[tuple[str, _Row]]:
    """The arrays, lists of numbers and texts that a stored row is made of."""
    if (value := _as_row(row)) is not None:
        yield "", value
    elif issubclass(type(row), dict):
        for key, inner in list(dict.items(row))[:MAX_FIELDS]:
            if (value := _as_row(inner)) is not None:
                yield f"[{key!r}]", value
    elif issubclass(type(row), (list, tuple)):
        for number, inner in enumerate(list(elements(row))[:MAX_FIELDS]):
            if (value := _as_row(inner)) is not None:
                yield f"[{number}]", value


def _as_row(value: Any) -> _Row | None:
    if type(value) is str:
        return value
    if type(value) is list and value and type(value[0]) in (int, float):
        return value[:MAX_ELEMENTS].copy()
    if isinstance(value, torch.Tensor):
        plain = type(value) is torch.Tensor and value.device.type == "cpu" and value.layout == torch.strided
        if not plain or value.is_complex() or not value.numel() or not value.dim():
            return None
        value = value.detach().flatten()[:MAX_ELEMENTS].double().numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and value.size and value.ndim:
        return value.ravel()[:MAX_ELEMENTS].astype(np.float64)
    return None


def _change(name: str, before: list[_Row], after: list[_Row]) -> dict[str, Any] | None:
    """What has become of rows; None where they are as they were."""
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if not _is_equal(old, new)]
    if not pairs:
        return None
    facts: dict[str, Any] = {"name": name, "rows": len(after), "changed": len(pairs), "kind": ""}
    if all(_is_longer(old, new) for old, new in pairs):
        return facts | {"kind": "longer", "by": len(pairs[0][1]) - len(pairs[0][0])}
    arrays = [
        (old, new)
        for old, new in pairs
        if isinstance(old, np.ndarray) and isinstance(new, np.ndarray) and len(old) == len(new)
    ]
    if len(arrays) < len(pairs):
        return facts
    old_RE, new_RE = ([pair[side] for pair in arrays] for side in (0, 1))
    if len({len(row) for row in old_RE}) == 1 and len(pairs) == len(after) >= FEWEST:
        # each feature by its own mean and deviation, on all rows
        of_features = [_line(*column) for column in zip(np.array(old_RE).T, np.array(new_RE).T, strict=True)]
    else:
        of_features = [None]
    for lines in (of_features, [_line(*pair) for pair in arrays]):
        on_lines = [line for line in lines if line is not None]
        if len(on_lines) == len(lines):
            factor, offset = max(on_lines, key=lambda line: abs(math.log(abs(line[0]))))
            return facts | {"kind": "scaled", "factor": factor, "offset": offset}
    return facts


def _is_equal(old: _Row, new: _Row) -> bool:
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        size = float(np.max(np.abs(old)))
        return old.shape == new.shape and np.allclose(old, new, rtol=0, atol=SAME * size, equal_nan=True)
    return type(old) is type(new) and bool(old == new)


def _is_longer(old: _Row, new: _Row) -> bool:
    if isinstance(old, np.ndarray) or isinstance(new, np.ndarray) or len(new) <= len(old):
        return False
    if isinstance(old, str) and isinstance(new, str):
        return old in new
    by = len(new) - len(old)
    return any(new[begin : begin + len(old)] == old for begin in range(by + 1))


def _line(old_E: NDArray[np.float64], new_E: NDArray[np.float64]) -> tuple[float, float] | None:
    """Factor and offset by which the new numbers are the old ones; None where they are on no line."""
    if len(old_E) < FEWEST or not (np.isfinite(old_E).all() and np.isfinite(new_E).all()):
        return None
    centred, image = old_E - old_E.mean(), new_E - new_E.mean()
    square = float(centred @ centred)
    if square == 0:
        return None
    factor = float(centred @ image) / square
    spread = float(np.sqrt(image @ image))
    if spread == 0 or np.sqrt(np.sum((image - factor * centred) ** 2)) > EXACT * spread:
        return None
    return factor, float(new_E.mean() - factor * old_E.mean())
