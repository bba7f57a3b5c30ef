"""Weights as the trainer has them against those of the rollout engine, in the engine's layout and dtype.

Engines merge what the trainer keeps apart (vLLM, SGLang: q, k and v into ``qkv_proj``, gate and up into
``gate_up_proj``, one below the other), and keep it in a dtype of their own: the trainer's values are merged and cast
first, so that what was handed over rightly is equal bit for bit.
"""

from __future__ import annotations

import itertools
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
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
}
"""Names of merged parameters, and of what they are made of from the first row on (vLLM, ``stacked_params_mapping`` of
its models of Llama, Qwen, Mistral and DeepSeek).
"""
EXPERTS: Mapping[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "experts.w13_weight": ("experts.gate_up_proj", (("gate_proj", "up_proj"), ("w1", "w3"))),
    "experts.w2_weight": ("experts.down_proj", (("down_proj",), ("w2",))),
}
"""Parameters of all experts of a layer in engines (``FusedMoE`` of vLLM and SGLang): the name in transformers since
version 5, where it is one tensor, too, and the names of what each expert has before that, [E, rows, columns] of them.
"""
_MOE = ("block_sparse_moe", "mlp")
"""What Mixtral's layer of experts is called in engines, and in transformers since version 5."""
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
        experts = _parts(name, ours) or _parts(name.replace(*_MOE), ours)
        used.update(part for parts in experts for part in parts)
        rows.append({"name": name} | _row(value, [[ours[part] for part in parts] for parts in experts]))
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


def _parts(name: str, ours: Mapping[str, Any]) -> list[list[str]]:
    """Those of the trainer's parameters that the engine's of this name is made of, for each expert where it has all."""
    if name in ours:
        return [[name]]
    for merged, parts in MERGED.items():
        found = [name.replace(f"{merged}.", f"{part}.") for part in parts]
        if f"{merged}." in name and all(part in ours for part in found):
            return [found]
    for own, (whole, kinds) in EXPERTS.items():
        front = name.removesuffix(own)
        if front == name:
            continue
        if front + whole in ours:
            return [[front + whole]]
        for kind in kinds:
            each = ([f"{front}experts.{index}.{part}.weight" for part in kind] for index in itertools.count())
            found = list(itertools.takewhile(lambda parts: all(part in ours for part in parts), each))
            if found:
                return found
    return []


def _row(theirs: Any, experts: list[list[Tensor]]) -> dict[str, Any]:
    seen = theirs if isinstance(theirs, Digest) else _digest(theirs)
    row: dict[str, Any] = {"digest_rollout": seen.digest, "numel_rollout": seen.numel, "dtype": seen.dtype}
    if not experts:
        return row | {"note": "the trainer has no parameter of this name"}
    wholes = [parts[0] if len(parts) == 1 else torch.cat([part.detach() for part in parts]) for parts in experts]
    whole = wholes[0] if len(wholes) == 1 else torch.stack([each.detach() for each in wholes])
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
