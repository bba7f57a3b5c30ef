"""Weights as the trainer has them against those of the rollout engine, in the engine's layout and dtype.

Engines merge what the trainer keeps apart (vLLM, SGLang: q, k and v into ``qkv_proj``, gate and up into
``gate_up_proj``, one below the other), and keep it in a dtype of their own: the trainer's values are merged and cast
first, so that what was handed over rightly is equal bit for bit. Where the trainer has adapters, and the engine a
weight with these merged into it, they are equal to within rounding, as a product of matrices has no bits of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trueline.rl import adapters
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
    cast = {name: tensor if dtype is None else tensor.to(dtype) for name, tensor in _pairs(weights)}
    return {adapters.plain(name): _digest(tensor) for name, tensor in cast.items()}


def rows_of(step: int, train: Weights, rollout: Weights, version: int | None) -> TableRows:
    """A row for each parameter of either side. ``rollout`` has tensors, or what ``digests`` made of them. Raises
    ``InputError`` where a side has none.
    """
    theirs, apart = adapters.split(_pairs(rollout))
    ours, beside = adapters.split(_pairs(train))
    if not (ours or beside) or not (theirs or apart):
        side = "train" if not (ours or beside) else "rollout"
        raise InputError(
            f"rl.record_sync was given no parameters as {side}. Pass model.named_parameters() of each side."
        )
    theirs |= _by_layer(apart)
    rest: dict[str, Any] = {}
    if apart:  # the engine holds adapters beside its weights, too
        rest, beside = _by_layer(beside), {}
    ours |= {name: value for name, value in rest.items() if name in theirs}
    used: set[str] = set()
    rows: list[dict[str, Any]] = []
    for name, value in theirs.items():
        experts = _parts(name, ours) or _parts(name.replace(*_MOE), ours)
        used.update(part for parts in experts for part in parts)
        rows.append({"name": name} | _row(value, experts, ours, beside))
    shared = {id(ours[name]) for name in used}
    rows += [
        {"name": name, "note": "the engine has no parameter of this name"}
        for name in ours
        if name not in used and id(ours[name]) not in shared
    ]
    rows += [
        {"name": name, "digest_train": _digest(value).digest, "note": "the engine keeps adapters out of sight"}
        for name, value in rest.items()
        if name not in theirs
    ]
    keys = dict.fromkeys(key for row in rows for key in row)
    columns: dict[str, Any] = {key: [row.get(key) for row in rows] for key in keys}
    if version is not None:
        columns["version"] = [int(version)] * len(rows)
    return TableRows("syncs", int(step), len(rows), columns)


def _by_layer(beside: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The parameters of adapters by name, without the adapter's own name where it is the only one of a kind."""
    by_layer: dict[str, Any] = {}
    for layer, parts in beside.items():
        for part, value in parts.items():
            kind, _, rest = part.partition(".")
            alone = sum(peer.partition(".")[0] == kind for peer in parts) == 1
            by_layer[f"{layer}.{kind}.weight" if alone and not rest.endswith("bias") else f"{layer}.{part}"] = value
    return by_layer


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


def _row(
    theirs: Any, experts: list[list[str]], ours: Mapping[str, Tensor], beside: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Any]:
    """The columns of a parameter of the engine that is made of the trainer's named in ``experts``."""
    seen = theirs if isinstance(theirs, Digest) else _digest(theirs)
    row: dict[str, Any] = {"digest_rollout": seen.digest, "numel_rollout": seen.numel, "dtype": seen.dtype}
    if not experts:
        return row | {"note": "the trainer has no parameter of this name"}
    names = [name for parts in experts for name in parts]
    parts_of = {name: adapters.changing(name, ours[name], beside) for name in names}
    dtype = getattr(torch, seen.dtype, ours[names[0]].dtype)
    cast = _whole(experts, ours).to(dtype)
    row |= {"digest_train": _digest(cast).digest, "numel_train": cast.numel()}
    adapted = {f"{name}.{part}": value for name in names for part, value in parts_of[name].items()}
    equal = row["digest_train"] == row["digest_rollout"]
    if equal and not any(adapters.is_visible(ours[name], parts, dtype) for name, parts in parts_of.items() if parts):
        adapted = {}
    if adapted:
        row |= {"digest_adapter": adapters.digest_of(adapted), "adapter_scale": 0.0}
    if equal or not adapted or seen.numel != cast.numel():
        return row | _gap(theirs, cast)
    if isinstance(theirs, Digest):
        return row | _unknown("a digest tells nothing of a weight with an adapter merged into it")
    weights, scales, fits = dict(ours), list[float](), True
    for name, value in _slices(names, ours, theirs).items():
        if not parts_of[name]:
            fits &= torch.equal(ours[name].detach().to(dtype).cpu().reshape(-1), value.cpu())
            continue
        best = adapters.merged(ours[name], parts_of[name], value)
        if best is None:
            return row | _unknown("an adapter of another kind than LoRA is not computed")
        weights[name] = best.weight
        scales.append(best.scale)
        fits &= best.within_rounding
    cast = _whole(experts, weights).to(dtype)
    row |= {"digest_train": seen.digest if fits else _digest(cast).digest, "adapter_scale": max(scales, key=abs)}
    return row | _gap(theirs, cast)


def _unknown(why: str) -> dict[str, Any]:
    """What makes a row one that was not compared."""
    return {"digest_train": None, "adapter_scale": None, "note": why}


def _whole(experts: list[list[str]], weights: Mapping[str, Tensor]) -> Tensor:
    """What the engine has in one: parts one below the other, experts stacked."""
    wholes = [
        weights[parts[0]].detach() if len(parts) == 1 else torch.cat([weights[part].detach() for part in parts])
        for parts in experts
    ]
    return wholes[0] if len(wholes) == 1 else torch.stack(wholes)


def _slices(names: Iterable[str], ours: Mapping[str, Tensor], theirs: Tensor) -> dict[str, Tensor]:
    """The engine's values [N] of each of the trainer's parameters, by name."""
    flat, place, found = theirs.detach().reshape(-1), 0, dict[str, Tensor]()
    for name in names:
        found[name] = flat[place : place + ours[name].numel()]
        place += ours[name].numel()
    return found


def _gap(theirs: Any, cast: Tensor) -> dict[str, Any]:
    """Column ``gap``, where values are at hand."""
    if isinstance(theirs, Digest) or theirs.numel() != cast.numel():
        return {}
    ours, own = cast.cpu().double().ravel(), theirs.detach().cpu().double().ravel()
    norm = float(ours.norm())
    return {"gap": float((ours - own).norm()) / norm if norm > 0 else float(own.norm())}


def _digest(tensor: Tensor) -> Digest:
    values = tensor.detach().cpu().contiguous()
    dtype = str(values.dtype).removeprefix("torch.")
    return Digest(int(digest_tensor(values.ravel())) % _HALF, values.numel(), dtype)


def _pairs(weights: Weights) -> Iterable[tuple[str, Any]]:
    return weights.items() if isinstance(weights, Mapping) else weights
