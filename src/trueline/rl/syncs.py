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

MERGED_NAMES: Mapping[str, tuple[str, ...]] = {
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
"""Names of Mixtral's layer of experts in engines, and in transformers since version 5."""
_HALF = 2**64

Weights = Mapping[str, Any] | Iterable[tuple[str, Any]]


@dataclass(frozen=True)
class WeightDigest:
    """Digest of a parameter on one side, of its values after a cast to ``dtype`` ('' for none)."""

    digest: int
    numel: int
    dtype: str = ""


def digests(weights: Weights, *, dtype: torch.dtype | None = None) -> dict[str, WeightDigest]:
    """The digest of each parameter, by name: what an engine in another process sends back, as by ``collective_rpc``."""
    cast = {name: tensor if dtype is None else tensor.to(dtype) for name, tensor in _pairs(weights)}
    return {adapters.plain_name(name): _digest(tensor) for name, tensor in cast.items()}


def rows_of(step: int, train: Weights, rollout: Weights, version: int | None) -> TableRows:
    """A row for each parameter of either side. ``rollout`` has tensors, or what ``digests`` made of them. Raises
    ``InputError`` where a side has none.
    """
    engine, engine_adapters = adapters.split_adapters(_pairs(rollout))
    trainer, trainer_adapters = adapters.split_adapters(_pairs(train))
    if not (trainer or trainer_adapters) or not (engine or engine_adapters):
        side = "train" if not (trainer or trainer_adapters) else "rollout"
        raise InputError(
            f"rl.record_sync was given no parameters as {side}. Pass model.named_parameters() of each side."
        )
    engine |= _by_layer(engine_adapters)
    rest: dict[str, Any] = {}
    if engine_adapters:  # the engine holds adapters beside its weights, too
        rest, trainer_adapters = _by_layer(trainer_adapters), {}
    trainer |= {name: value for name, value in rest.items() if name in engine}
    matched: set[str] = set()
    rows: list[dict[str, Any]] = []
    for name, value in engine.items():
        experts = _source_names(name, trainer) or _source_names(name.replace(*_MOE), trainer)
        matched.update(part for parts in experts for part in parts)
        rows.append({"name": name} | _row(value, experts, trainer, trainer_adapters))
    shared = {id(trainer[name]) for name in matched}  # tied weights: one tensor under two names
    rows += [
        {"name": name, "note": "the engine has no parameter of this name"}
        for name in trainer
        if name not in matched and id(trainer[name]) not in shared
    ]
    rows += [
        {"name": name, "digest_train": _digest(value).digest, "note": "the engine keeps adapters out of sight"}
        for name, value in rest.items()
        if name not in engine
    ]
    keys = dict.fromkeys(key for row in rows for key in row)
    columns: dict[str, Any] = {key: [row.get(key) for row in rows] for key in keys}
    if version is not None:
        columns["version"] = [int(version)] * len(rows)
    return TableRows("syncs", int(step), len(rows), columns)


def _by_layer(adapters_by_layer: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The parameters of adapters by name, without the adapter's own name where it is the only one of a kind."""
    by_layer: dict[str, Any] = {}
    for layer, parts in adapters_by_layer.items():
        for part, value in parts.items():
            kind, _, rest = part.partition(".")
            alone = sum(peer.partition(".")[0] == kind for peer in parts) == 1
            by_layer[f"{layer}.{kind}.weight" if alone and not rest.endswith("bias") else f"{layer}.{part}"] = value
    return by_layer


def _source_names(name: str, trainer: Mapping[str, Any]) -> list[list[str]]:
    """Names of the trainer's parameters that the engine's ``name`` is made of, for each expert where it has all."""
    if name in trainer:
        return [[name]]
    for merged, parts in MERGED_NAMES.items():
        names = [name.replace(f"{merged}.", f"{part}.") for part in parts]
        if f"{merged}." in name and all(part in trainer for part in names):
            return [names]
    for engine_name, (whole, kinds) in EXPERTS.items():
        front = name.removesuffix(engine_name)
        if front == name:
            continue
        if front + whole in trainer:
            return [[front + whole]]
        for kind in kinds:
            names_of_experts = (
                [f"{front}experts.{index}.{part}.weight" for part in kind] for index in itertools.count()
            )
            names = list(itertools.takewhile(lambda parts: all(part in trainer for part in parts), names_of_experts))
            if names:
                return names
    return []


def _row(
    engine_weight: Any,
    experts: list[list[str]],
    trainer: Mapping[str, Tensor],
    trainer_adapters: Mapping[str, Mapping[str, Tensor]],
) -> dict[str, Any]:
    """The columns of a parameter of the engine that is made of the trainer's named in ``experts``."""
    engine_digest = engine_weight if isinstance(engine_weight, WeightDigest) else _digest(engine_weight)
    row: dict[str, Any] = {
        "digest_rollout": engine_digest.digest,
        "numel_rollout": engine_digest.numel,
        "dtype": engine_digest.dtype,
    }
    if not experts:
        return row | {"note": "the trainer has no parameter of this name"}
    names = [name for parts in experts for name in parts]
    parts_of = {name: adapters.changing_parts(name, trainer[name], trainer_adapters) for name in names}
    dtype = getattr(torch, engine_digest.dtype, trainer[names[0]].dtype)
    cast = _whole(experts, trainer).to(dtype)
    row |= {"digest_train": _digest(cast).digest, "numel_train": cast.numel()}
    adapted = {f"{name}.{part}": value for name in names for part, value in parts_of[name].items()}
    equal = row["digest_train"] == row["digest_rollout"]
    if equal and not any(adapters.is_visible(trainer[name], parts, dtype) for name, parts in parts_of.items() if parts):
        adapted = {}
    if adapted:
        row |= {"digest_adapter": adapters.digest_of(adapted), "adapter_scale": 0.0}
    if equal or not adapted or engine_digest.numel != cast.numel():
        return row | _gap(engine_weight, cast)
    if isinstance(engine_weight, WeightDigest):
        return row | _unknown("a digest tells nothing of a weight with an adapter merged into it")
    weights, scales, fits = dict(trainer), list[float](), True
    for name, value in _slices(names, trainer, engine_weight).items():
        if not parts_of[name]:
            fits &= torch.equal(trainer[name].detach().to(dtype).cpu().reshape(-1), value.cpu())
            continue
        best = adapters.merge_adapters(trainer[name], parts_of[name], value)
        if best is None:
            return row | _unknown("an adapter of another kind than LoRA is not computed")
        weights[name] = best.weight
        scales.append(best.scale)
        fits &= best.within_rounding
    cast = _whole(experts, weights).to(dtype)
    row |= {
        "digest_train": engine_digest.digest if fits else _digest(cast).digest,
        "adapter_scale": max(scales, key=abs),
    }
    return row | _gap(engine_weight, cast)


def _unknown(why: str) -> dict[str, Any]:
    """Columns of a row that was not compared, with the reason."""
    return {"digest_train": None, "adapter_scale": None, "note": why}


def _whole(experts: list[list[str]], weights: Mapping[str, Tensor]) -> Tensor:
    """The weight as the engine has it in one: parts one below the other, experts stacked."""
    wholes = [
        weights[parts[0]].detach() if len(parts) == 1 else torch.cat([weights[part].detach() for part in parts])
        for parts in experts
    ]
    return wholes[0] if len(wholes) == 1 else torch.stack(wholes)


def _slices(names: Iterable[str], trainer: Mapping[str, Tensor], engine_weight: Tensor) -> dict[str, Tensor]:
    """The engine's values [N] of each of the trainer's parameters, by name."""
    flat, start, slices = engine_weight.detach().reshape(-1), 0, dict[str, Tensor]()
    for name in names:
        slices[name] = flat[start : start + trainer[name].numel()]
        start += trainer[name].numel()
    return slices


def _gap(engine_weight: Any, cast: Tensor) -> dict[str, Any]:
    """Column ``gap``, where values are at hand."""
    if isinstance(engine_weight, WeightDigest) or engine_weight.numel() != cast.numel():
        return {}
    trainer_values, engine_values = cast.cpu().double().ravel(), engine_weight.detach().cpu().double().ravel()
    norm = float(trainer_values.norm())
    return {"gap": float((trainer_values - engine_values).norm()) / norm if norm > 0 else float(engine_values.norm())}


def _digest(tensor: Tensor) -> WeightDigest:
    values = tensor.detach().cpu().contiguous()
    dtype = str(values.dtype).removeprefix("torch.")
    return WeightDigest(int(digest_tensor(values.ravel())) % _HALF, values.numel(), dtype)


def _pairs(weights: Weights) -> Iterable[tuple[str, Any]]:
    return weights.items() if isinstance(weights, Mapping) else weights
