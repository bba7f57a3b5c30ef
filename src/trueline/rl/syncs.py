"""Weights as the trainer has them against those of the rollout engine, in the engine's layout and dtype.

Engines merge what the trainer keeps apart (vLLM, SGLang: q, k and v into ``qkv_proj``, gate and up into
``gate_up_proj``, one below the other), and keep it in a dtype of their own: the trainer's values are merged and cast
first, so that what was handed over rightly is equal bit for bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trueline.schema.columns.rollouts import TableRows
from trueline.schema.errors import InputError
from trueline.tensor.digest import digest_tensor

MERGED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Names of merged parameters, and of what they are made of from the first row on (vLLM 0.6, ``packed_modules_mapping``
of its models of Llama, Qwen and Mistral).
"""
_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.|base_model\.model\.)+")
_HALF = 2**64

Weights = Mapping[str, Any] | Iterable[tuple[str, Any]]


@dataclass(frozen=True)
class Digest:
    """What one side says of a parameter: of its values after a cast to ``dtype`` ('' of none)."""

    digest: int
    numel: int
    dtype: str = ""


def digests(weights: Weights, *, dtype: torch.dtype | None = None) -> dict[str, Digest]:
    """The digest of each parameter, by name: what an engine in another process sends back, as by ``collective_rpc``."""
    return {_plain(name): _digest(tensor if dtype is None else tensor.to(dtype)) for name, tensor in _pairs(weights)}


def rows_of(step: int, train: Weights, rollout: Weights, version: int | None) -> TableRows:
    """A row for each parameter of either side. ``rollout`` has tensors, or what ``digests`` made of them. Raises
    ``InputError`` where a side has none.
    """
    theirs = {_plain(name): value for name, value in _pairs(rollout)}
    ours = {_plain(name): value for name, value in _pairs(train)}
    if not ours or not theirs:
        side = "train" if not ours else "rollout"
        raise InputError(
            f"rl.record_sync was given no parameters as {side}. Pass model.named_parameters() of each side."
        )
    used: set[str] = set()
    rows: list[dict[str, Any]] = []
    for name, value in theirs.items():
        parts = _parts(name, ours)
        used.update(parts)
        rows.append({"name": name} | _row(value, [ours[part] for part in parts]))
    shared = {id(ours[name]) for name in used}
    rows += [
        {"name": name, "note": "the engine has no parameter of this name"}
        for name in ours
        if name not in used and id(ours[name]) not in shared
    ]
    keys = dict.fromkeys(key for row in rows for key in row)
    columns: dict[str, Any] = {key: [row.get(key) for row in rows] for key in keys}
    if version is not None:
        columns["version"] = [int(version)] * len(rows)
    return TableRows("syncs", int(step), len(rows), columns)


def _parts(name: str, ours: Mapping[str, Any]) -> list[str]:
    """Those of the trainer's parameters that the engine's of this name is made of."""
    if name in ours:
        return [name]
    for merged, parts in MERGED.items():
        found = [name.replace(f"{merged}.", f"{part}.") for part in parts]
        if f"{merged}." in name and all(part in ours for part in found):
            return found
    return []


def _row(theirs: Any, parts: list[Tensor]) -> dict[str, Any]:
    seen = theirs if isinstance(theirs, Digest) else _digest(theirs)
    row: dict[str, Any] = {"digest_rollout": seen.digest, "numel_rollout": seen.numel, "dtype": seen.dtype}
    if not parts:
        return row | {"note": "the trainer has no parameter of this name"}
    whole = parts[0] if len(parts) == 1 else torch.cat([part.detach() for part in parts])
    cast = whole.detach().to(getattr(torch, seen.dtype, whole.dtype))
    row |= {"digest_train": _digest(cast).digest, "numel_train": whole.numel()}
    if not isinstance(theirs, Digest) and theirs.numel() == cast.numel():
        ours, own = cast.cpu().double().ravel(), theirs.detach().cpu().double().ravel()
        norm = float(ours.norm())
        row["gap"] = float((ours - own).norm()) / norm if norm > 0 else float(own.norm())
    return row


def _digest(tensor: Tensor) -> Digest:
    held = tensor.detach().cpu().contiguous()
    dtype = str(held.dtype).removeprefix("torch.")
    return Digest(int(digest_tensor(held.ravel())) % _HALF, held.numel(), dtype)


def _pairs(weights: Weights) -> Iterable[tuple[str, Any]]:
    return weights.items() if isinstance(weights, Mapping) else weights


def _plain(name: str) -> str:
    return _WRAPPERS.sub("", name)
