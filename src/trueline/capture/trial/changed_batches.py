"""A batch with its rows in reverse, with half of them, with one alone, or with more or less padding: whatever holds
its tensors.

Letters: B rows, T positions.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from trueline.capture.probes.batch import IGNORE_INDEX, MASKS
from trueline.schema.columns.batch_features import TARGETS

Change = Literal["none", "rows", "first", "second", "one", "padding"]

MORE_PADDING = 3
"""Positions of padding that are added where no row has more than it needs."""


class Unchangeable(Exception):
    """A batch that cannot be changed in a way, and why, as the end of a sentence that begins with "as"."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Number of rows of a batch, and whether it is ``sure``: its loader says so, and no other dimension is as long."""

    count: int
    sure: bool


def rows_of(batch: Any, batch_size: int | None) -> Rows:
    """The rows of a batch whose loader puts ``batch_size`` samples into one (None: it does not say). Raises
    ``Unchangeable``.
    """
    tensors = [x for _, x in leaves(batch) if x.dim() > 0]
    if not tensors:
        raise Unchangeable("the batch holds no tensor with rows")
    count = batch_size if batch_size is not None and batch_size in tensors[0].shape else tensors[0].shape[0]
    if not count:
        raise Unchangeable("the batch has 0 rows")
    for x in tensors:
        _row_dim(x, count)
    # a tensor with two dimensions of that size does not say which of them is of rows
    one_place = any(tuple(x.shape).count(count) == 1 for x in tensors)
    return Rows(count, sure=batch_size == count and one_place)


def changed(batch: Any, change: Change, rows: int) -> Any:
    """A batch of the same form; the one given stays as it is. Raises ``Unchangeable``."""
    if change == "none":
        return batch
    if change == "padding":
        return _padded(batch, rows)
    start, end = {"rows": (0, rows), "first": (0, rows // 2), "second": (rows // 2, rows), "one": (0, 1)}[change]
    if rows < 2:
        raise Unchangeable("the batch has one row")

    def of_rows(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value[::-1] if change == "rows" else value[start:end]
        dim = _row_dim(value, rows)
        if dim is None:
            return value
        return value.flip(dim) if change == "rows" else value.narrow(dim, start, end - start).clone()

    return _rebuilt(batch, of_rows, rows)


def what_counts(batch: Any, rows: int) -> dict[str, tuple[float, float]]:
    """By what a mean may be over: how much of it the first half of the rows has, and the second."""
    half = rows // 2
    counts = {"rows": (float(half), float(rows - half))}
    for number, (name, x) in enumerate(leaves(batch)):
        if x.dim() == 0 or x.shape[0] != rows:
            continue
        label = f"`{name}`" if name else f"tensor {number}"
        for quantity, weights in _weights(x):
            counts[f"{quantity} {label}"] = _halves(weights, half)
            if weights.dim() >= 2:
                counts[f"{quantity} {label} without its first position"] = _halves(weights[:, 1:], half)
    return counts


def _weights(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Weights that a mean may be over, by one tensor of a batch: a mask, labels without those left out, lengths."""
    if bool(((x == 0) | (x == 1)).all()):
        yield "what is 1 in", x
    if x.is_floating_point() or x.dtype == torch.bool:
        return
    yield f"what is not {IGNORE_INDEX} in", x != IGNORE_INDEX
    if x.dim() == 1:
        yield "the sum of", x
    elif x.dim() == 2:
        # what most rows end with is taken for the padding token
        last = x[:, -1].mode().values
        yield "what is not the last value of", x != last


def leaves(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch, each with the name that it has there; a pair of tensors is (inputs, targets)."""
    if isinstance(value, Tensor):
        yield name, value
    elif depth < 4:
        for inner_name, inner in _inside(value, name):
            yield from leaves(inner, inner_name, depth + 1)


def _inside(value: Any, name: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), inner) for key, inner in value.items()]
    if isinstance(value, tuple | list):
        pair = len(value) == 2 and not name and all(isinstance(x, Tensor) for x in value)
        return [(name, value[0]), ("targets", value[1])] if pair else [(name, inner) for inner in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return []


def _rebuilt(value: Any, change: Callable[[str, Any], Any], rows: int, name: str = "", depth: int = 0) -> Any:
    """A copy with ``change(name, leaf)`` for each tensor, and for each list of as many things as there are rows."""
    if isinstance(value, Tensor):
        return change(name, value)
    inside = _inside(value, name)
    if depth >= 4 or not inside:
        return value
    # a list of texts, one a sample, has to be reordered with the tensors
    plain = not any(isinstance(x, Tensor) or _inside(x, "") for _, x in inside)
    if plain and isinstance(value, list | tuple) and len(value) == rows:
        return change(name, value)
    parts = [_rebuilt(inner, change, rows, inner_name, depth + 1) for inner_name, inner in inside]
    if isinstance(value, Mapping):
        # a copy keeps the class of the mapping, as BatchEncoding, of which nobody knows how it is made
        new: Any = copy.copy(value)
        for key, inner in zip(value, parts, strict=True):
            new[key] = inner
        return new
    if isinstance(value, tuple):
        # a named tuple takes its fields one by one
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list):
        return type(value)(parts)
    return dataclasses.replace(value, **{key: inner for (key, _), inner in zip(inside, parts, strict=True)})


def _row_dim(x: Tensor, rows: int) -> int | None:
    """The dimension of rows; None where there is none, as one value is for all of them."""
    if x.dim() == 0 or (x.shape[0] == 1 and rows > 1 and rows not in x.shape):
        return None
    dims = [dim for dim, size in enumerate(x.shape) if size == rows]
    if not dims:
        raise Unchangeable(f"a tensor of shape {list(x.shape)} has no dimension of the {rows} rows of the batch")
    return dims[0]


def _halves(weights: Tensor, half: int) -> tuple[float, float]:
    return float(weights[:half].sum()), float(weights[half:].sum())


def _padded(batch: Any, rows: int) -> Any:
    """Without the positions that are padding in every row, or else with ``MORE_PADDING`` such as there are."""
    kept_BT = _not_padding(batch, rows)
    length = kept_BT.shape[1]
    for _, x in leaves(batch):
        if x.dim() > 1 and x.shape[0] == rows and length in x.shape[2:]:
            raise Unchangeable(f"a tensor of shape {list(x.shape)} has more than one dimension of {length} positions")
    at_end = not bool(kept_BT[:, -1].all())
    from_edge_BT = kept_BT.flip(1) if at_end else kept_BT
    # positions at the edge that are padding in all rows
    spare = int((from_edge_BT.cumsum(1) == 0).sum(1).amin())
    edge = length - 1 if at_end else 0
    row = int((~kept_BT[:, edge]).int().argmax())

    def of_positions(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() < 2 or tuple(value.shape[:2]) != (rows, length):
            return value
        if spare:
            return (value[:, : length - spare] if at_end else value[:, spare:]).clone()
        pad = value[row, edge].expand(rows, MORE_PADDING, *value.shape[2:])
        return torch.cat([value, pad] if at_end else [pad, value], dim=1)

    return _rebuilt(batch, of_positions, rows)


def _not_padding(batch: Any, rows: int) -> Tensor:
    """Bool [B, T]: what is no padding, by an attention mask, or else by labels that end with what is left out where
    inputs end with one token. Raises ``Unchangeable`` where neither shows any at an end of a row.
    """
    named_tensors = [(name, x) for name, x in leaves(batch) if x.dim() == 2 and len(x) == rows]
    for name, x in named_tensors:
        if name in MASKS:
            kept_BT = x != 0
            if bool(kept_BT.any()) and not bool((kept_BT[:, 0] & kept_BT[:, -1]).all()):
                return kept_BT
            raise Unchangeable("no row of its mask ends or begins with padding")
    for name, x in named_tensors:
        if name in TARGETS and x.dtype == torch.int64:
            # labels may also be left out within a text: only what follows the last one that counts is padding
            kept_BT = (x != IGNORE_INDEX).flip(1).cummax(1).values.flip(1)
            ids = next((y for other_name, y in named_tensors if other_name not in TARGETS and y.shape == x.shape), None)
            pads = ids[~kept_BT] if ids is not None else x[~kept_BT]
            if ids is not None and len(pads) > 1 and bool((pads == pads[0]).all()) and not bool(kept_BT[:, -1].all()):
                return kept_BT
    raise Unchangeable("it has neither an attention mask nor labels of -100 that show what is padding")
