"""Rows of the table ``rollouts``, made of what a training loop hands over of a batch.

Nothing here raises for values that do not fit: the sequence is kept as far as it can be judged, and its ``note`` says
what was left out. B sequences, L response tokens of one, P prompt tokens of one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.rl.routing import ROUTING_ARGUMENTS, ROUTING_COLUMNS, compare_routing
from trueline.schema.columns.rollouts import Lists, TableRows, misfit
from trueline.schema.errors import InputError
from trueline.schema.text.secrets import redacted
from trueline.schema.text.words import counted

TOKEN_COLUMNS: tuple[str, ...] = (
    *("logp_rollout", "logp_train", "logp_update", "entropy", "varentropy", "odds_rollout", "odds_train"),
    *("mass_above", "words_above", "logp_top", *ROUTING_COLUMNS),
)
"""Columns with a number for each response token."""
RESPONSE_IDS: tuple[str, ...] = ("response_ids", "top_train")
"""Columns with a token id for each response token."""
ID_COLUMNS: tuple[str, ...] = ("prompt_ids", "train_prompt_ids", "train_response_ids")
SCALAR_COLUMNS: tuple[str, ...] = (
    *("version_rollout", "version_train", "reward", "reward_again", "advantage", "group"),
)
_WHOLE = ("version_rollout", "version_train", "group")


@dataclass
class _Sequence:
    """One sequence as it is taken: arrays by column, and what could not be."""

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def rows_of(
    step: int,
    batch: Mapping[str, Any],
    sampling: Mapping[str, Any] | None,
    *,
    declared: Mapping[str, Any] | None = None,
) -> TableRows:
    """The rows of a batch, one a sequence. ``batch`` has columns of the table: of tokens as [B, L] arrays or B arrays,
    of a sequence as B numbers or one for all; ``declared`` is what ``sampling`` is taken to say where it does not.
    Raises ``InputError`` where not even the sequences can be told apart.
    """
    if not isinstance(step, int | np.integer) or step < 0:
        raise InputError(f"step={step!r} is given to rl.record, which takes the trainer's step, 0 or more.")
    if sampling is not None and not isinstance(sampling, Mapping):
        raise InputError(f"sampling={sampling!r} is given to rl.record, which takes a mapping: {{'temperature': 1.0}}.")
    per_token = {
        name: _split(name, batch[name])
        for name in (*RESPONSE_IDS, "mask", *TOKEN_COLUMNS, *ID_COLUMNS)
        if batch.get(name) is not None
    }
    count = _count(per_token)
    routing, layers, routing_notes = _routing(batch, count)
    per_token |= routing
    sequences = [
        _sequence({name: lists[i] if i < len(lists) else None for name, lists in per_token.items()})
        for i in range(count)
    ]
    for sequence, note in zip(sequences, routing_notes, strict=True):
        sequence.notes += filter(None, [note])
    for name, lists in per_token.items():
        for sequence in sequences[len(lists) :]:
            sequence.notes.append(f"{name} has {counted(len(lists), 'sequence')} of {count}")
    columns: dict[str, Any] = {}
    for name in per_token:
        dtype = np.float32 if name in TOKEN_COLUMNS else np.int32
        columns[name] = Lists.of([sequence.arrays.get(name) for sequence in sequences], dtype)
    for name in SCALAR_COLUMNS:
        if batch.get(name) is not None:
            columns[name] = _scalars(name, batch[name], sequences)
    if any(layers):
        columns["routed_layers"] = layers
    if declared:
        sampling = {**declared, **(sampling or {})}
    if sampling:
        columns["sampling"] = [json.dumps(redacted(dict(sampling)), sort_keys=True, default=str)] * count
    columns["note"] = ["; ".join(sequence.notes) or None for sequence in sequences]
    return TableRows("rollouts", int(step), count, columns)


def _routing(
    batch: Mapping[str, Any], count: int
) -> tuple[dict[str, list[NDArray[Any] | None]], list[int | None], list[str]]:
    """Columns of routing, the number of layers with experts, and what could not be taken, of each sequence."""
    given = {name: list(batch[name]) for name in ROUTING_ARGUMENTS if batch.get(name) is not None}
    layers: list[int | None] = [None] * count
    notes = [""] * count
    columns: dict[str, list[NDArray[Any] | None]] = {}
    for index in range(count if given else 0):
        sides = [_array(given[name][index]) if index < len(given.get(name, ())) else None for name in ROUTING_ARGUMENTS]
        shapes = {side.shape for side in sides if side is not None}
        if len(shapes) > 1 or any(len(shape) != 3 for shape in shapes):
            says = ", ".join(str(shape) for shape in sorted(shapes))
            notes[index] = f"experts and their weights have shapes {says}, expected [tokens, layers, slots] of both"
            continue
        rollout, train, *weights = sides
        layers[index] = next(iter(shapes))[1] if shapes else None
        if rollout is None or train is None:
            continue
        both = (weights[0], weights[1]) if weights[0] is not None and weights[1] is not None else None
        for name, values in compare_routing(rollout, train, both).items():
            columns.setdefault(name, [None] * count)[index] = values
    return columns, layers, notes


def _count(per_token: Mapping[str, Sequence[Any]]) -> int:
    if not per_token:
        raise InputError("rl.record was given no tokens. Pass response_ids, or logp_rollout and logp_train.")
    for name in ("response_ids", "logp_rollout", "logp_train"):
        if name in per_token:
            return len(per_token[name])
    return max(map(len, per_token.values()))


def _split(name: str, value: Any) -> list[NDArray[Any] | None]:
    """B arrays of one dimension, None for one that is none."""
    if isinstance(value, list | tuple):
        if value and all(isinstance(part, int | float) for part in value):
            return [_array(value)]  # one sequence
        return [None if part is None else _array(part).ravel() for part in value]
    array = _array(value)
    if array.ndim == 1 and array.dtype == object:
        return [None if part is None else _array(part).ravel() for part in array]
    if array.ndim < 2:
        return [array.reshape(-1)]
    if array.ndim > 2:
        raise InputError(f"{name} has shape {array.shape}, expected [sequences, tokens].")
    return list(array)


def _array(value: Any) -> NDArray[Any]:
    """A tensor of torch, of any dtype and device, or whatever NumPy takes, as an array in host memory."""
    if hasattr(value, "detach"):
        value = value.detach()
        value = (value.float() if value.is_floating_point() else value).cpu().numpy()
    return np.asarray(value)


def _sequence(values_by_column: Mapping[str, NDArray[Any] | None]) -> _Sequence:
    sequence = _Sequence()
    lengths = {
        name: len(values_by_column[name])
        for name in ("response_ids", "logp_rollout", "logp_train", "mask")
        if (values_by_column.get(name)) is not None
    }
    length = next(iter(lengths.values()), 0)
    mask = values_by_column.get("mask")
    if mask is not None and len(mask) != length:
        sequence.notes.append(f"{misfit('mask', len(mask), length)}, so that no token counts as sampled")
        mask = np.zeros(length, np.int32)
    # Padding behind the last sampled token is cut off; the 1 in front stands for a sequence without any.
    end = length if mask is None else int(np.flatnonzero(np.concatenate([[1], np.asarray(mask) != 0]))[-1])
    if end == 0:
        sequence.notes.append("no token was sampled")
    if mask is not None:
        sequence.arrays["mask"] = (np.asarray(mask[:end]) != 0).astype(np.int32)
    for name, values in values_by_column.items():
        if values is None or name == "mask":
            continue
        if name in ID_COLUMNS:
            sequence.arrays[name] = _ids(name, values, sequence)
        elif len(values) != length:
            sequence.notes.append(f"{misfit(name, len(values), length)} and was left out")
        elif name in RESPONSE_IDS:
            sequence.arrays[name] = _ids(name, values[:end], sequence)
        else:
            sequence.arrays[name] = _numbers(name, values[:end], sequence)
    return sequence


def _ids(name: str, values: NDArray[Any], sequence: _Sequence) -> NDArray[np.int32]:
    numbers = np.asarray(values)
    if numbers.size and (numbers.dtype.kind not in "iub" or numbers.min() < -(2**31) or numbers.max() >= 2**31):
        sequence.notes.append(f"{name} are no token ids and were left out")
        return np.zeros(0, np.int32)
    return numbers.astype(np.int32)


def _numbers(name: str, values: NDArray[Any], sequence: _Sequence) -> NDArray[np.float32]:
    try:
        return np.asarray(values).astype(np.float32)
    except (TypeError, ValueError):
        sequence.notes.append(f"{name} are no numbers and were left out")
        return np.full(len(values), np.nan, np.float32)


def _scalars(name: str, value: Any, sequences: Sequence[_Sequence]) -> list[Any]:
    """A number for each sequence; one number is that of all."""
    values = _array(value).reshape(-1).tolist()
    values = values * len(sequences) if len(values) == 1 else values
    for sequence in sequences[len(values) :]:
        sequence.notes.append(f"{name} has {counted(len(values), 'value')} for {counted(len(sequences), 'sequence')}")
    scalars = [*values[: len(sequences)], *[None] * (len(sequences) - len(values))]
    return [_scalar(name, scalar, sequence) for scalar, sequence in zip(scalars, sequences, strict=True)]


def _scalar(name: str, value: Any, sequence: _Sequence) -> float | int | None:
    if value is None or not isinstance(value, int | float) or (name in _WHOLE and not math.isfinite(value)):
        return None
    if name in _WHOLE and value != int(value):
        sequence.notes.append(f"{name} is {value!r} and no whole number")
        return None
    return int(value) if name in _WHOLE else float(value)
