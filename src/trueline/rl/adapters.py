"""Adapters that a trainer holds beside its weights, and that an engine has merged into them.

PEFT keeps the weight of a layer X as ``X.base_layer.weight``, and what is trained of LoRA as ``X.lora_A.NAME.weight``
[r, in] and ``X.lora_B.NAME.weight`` [out, r]: an engine has ``X.weight`` = base + scale B A. The scale (``lora_alpha /
r`` unless configured otherwise) is in no parameter, so it is the one that fits best.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trueline.tensor.digest import digest_tensor

_WRAPPED = re.compile(
    r"(?:(?<=^)|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_model\.model)\."
)
"""Parts that wrappers put into names: torch.compile, FSDP1, activation checkpointing, PEFT."""
_SAVED = re.compile(r"\.modules_to_save\.[^.]+\.")
"""PEFT's copy of a module that is trained whole, in whose place ``original_module`` is kept and not used."""
_BASE = ".base_layer."
_LORA = re.compile(r"^(.+?)\.(lora_.+)$")
_PAIR = re.compile(r"^lora_(?:embedding_)?([AB])(?:\.(.+?))?(?:\.weight)?$")

SMALL_SCALE = 0.25
"""A scale that is hardly smaller anywhere (QLoRA's configurations: alpha 16, r 64): what such an adapter does not
change after the cast, no engine can show.
"""
_VISIBLE = 0.01
"""Share of the elements that it changes at least to be called visible."""
_MATMUL = 2.0**-10
"""Relative error of a product of matrices in TensorFloat-32, which has 10 bits."""


def plain_name(name: str) -> str:
    """The name of a parameter without what wrappers put into it."""
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return _WRAPPED.sub("", name)


def split_adapters(weights: Iterable[tuple[str, Any]]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The weights by plain name, and beside them what adapters hold, by layer and by name within it. A layer whose
    adapter is held elsewhere has an empty entry.
    """
    plain_weights = [(plain_name(name), value) for name, value in weights if ".original_module." not in name]
    layers = {name.partition(_BASE)[0] for name, _ in plain_weights if _BASE in name}
    of_model: dict[str, Any] = {}
    adapters: dict[str, dict[str, Any]] = {layer: {} for layer in layers}
    for name, value in plain_weights:
        layer, part = _adapter_of(name, layers)
        if part:
            adapters.setdefault(layer, {})[part] = value
        else:
            of_model[_SAVED.sub(".", name).replace(_BASE, ".")] = value
    return of_model, adapters


def _adapter_of(name: str, layers: set[str]) -> tuple[str, str]:
    """The layer that a parameter adapts, and its name there; '' for one that is of a model itself."""
    if _BASE in name:
        return "", ""
    if (lora := _LORA.match(name)) is not None:
        return lora[1], lora[2]
    layer = name
    while "." in layer:
        layer = layer.rpartition(".")[0]
        if layer in layers:
            return layer, name.removeprefix(f"{layer}.")
    return "", ""


def changing_parts(name: str, base: Tensor, adapters: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors that are added to the parameter ``name``, by name in its layer: none for most, and while B is 0."""
    layer, _, leaf = name.rpartition(".")
    of_layer = adapters.get(layer, {})
    parts = {part: value for part, value in of_layer.items() if part.endswith(".bias") == (leaf == "bias")}
    changes = deltas(base, parts)
    return {} if changes and not any(bool(turns[0].any()) for turns in changes) else parts


def digest_of(parts: Mapping[str, Tensor]) -> int:
    """One digest of all tensors of an adapter."""
    total = 0
    for index, name in enumerate(sorted(parts), 1):
        # Weighted by position, so that two tensors that change places change the digest.
        total += index * (int(digest_tensor(parts[name].detach().cpu().contiguous().ravel())) % 2**64)
    return total % 2**64


@dataclass(frozen=True)
class MergedWeight:
    """A weight [the shape of the base] with its adapters, ``scale`` of the largest, and whether the engine's differs
    from it by no more than rounding.
    """

    weight: Tensor
    scale: float
    within_rounding: bool


def deltas(base: Tensor, parts: Mapping[str, Tensor]) -> list[list[Tensor]]:
    """B A of each adapter in the shape of ``base``, in float32: as it stands, and transposed (GPT-2's layers,
    embeddings), where both fit. Nothing where ``parts`` are not those of LoRA.
    """
    sides: dict[str, dict[str, Tensor]] = {}
    for name, value in parts.items():
        pair = _PAIR.match(name)
        if pair is None or value.ndim < 2:
            return []
        sides.setdefault(pair[2] or "", {})[pair[1]] = value.detach().to(base.device, torch.float32).flatten(1)
    candidates: list[list[Tensor]] = []
    for pair in sides.values():
        if pair.keys() != {"A", "B"} or pair["B"].shape[1] != pair["A"].shape[0]:
            return []
        whole = pair["B"] @ pair["A"]
        turns = [side for side in (whole, whole.T) if side.shape[0] == base.shape[0] and side.numel() == base.numel()]
        if not turns:
            return []
        candidates.append([side.reshape(base.shape) for side in turns])
    return candidates


def is_visible(base: Tensor, parts: Mapping[str, Tensor], dtype: torch.dtype) -> bool:
    """True if adapters would change ``base`` after a cast to ``dtype``; those of another kind than LoRA always do."""
    changes = deltas(base, parts)
    if not changes:
        return any(bool(value.any()) for value in parts.values())
    moved = base.detach().float() + SMALL_SCALE * sum(turns[0] for turns in changes)
    return float((moved.to(dtype) != base.detach().to(dtype)).float().mean()) > _VISIBLE


def merge_adapters(base: Tensor, parts: Mapping[str, Tensor], engine_weight: Tensor) -> MergedWeight | None:
    """``base`` with its adapters at the scales that bring it nearest to the engine's ``engine_weight``, of as many
    elements; None where they cannot be computed.
    """
    changes = deltas(base, parts)
    if not changes or not engine_weight.is_floating_point():
        return None
    target = engine_weight.detach().to(base.device, torch.float32).reshape(base.shape)
    turned = all(len(turns) == 2 for turns in changes)
    orientations = [[turns[0] for turns in changes], *([[turns[1] for turns in changes]] if turned else [])]
    best = min(
        (_fit_scales(base.detach().float(), orientation, target) for orientation in orientations),
        key=lambda fit: fit[2],
    )
    weight, scales, rest, change = best
    unit = torch.finfo(engine_weight.dtype).eps / 2
    room = 2 * unit * float(base.detach().float().norm()) + (4 * unit + _MATMUL) * change
    return MergedWeight(weight, max(scales, key=abs), rest <= room)


def _fit_scales(base: Tensor, changes: Sequence[Tensor], target: Tensor) -> tuple[Tensor, list[float], float, float]:
    """Base and changes at the scales of least squares, these, and the norms of what is left and of the changes."""
    flat = torch.stack([change.reshape(-1) for change in changes]).double()
    rest = (target - base).reshape(-1).double()
    # The pseudo-inverse: two adapters of one layer may point the same way.
    scales = torch.linalg.pinv(flat @ flat.T) @ (flat @ rest)
    change = (scales @ flat).reshape(base.shape)
    residual = float((rest - change.reshape(-1)).norm())
    return (base.double() + change).float(), scales.tolist(), residual, float(change.norm())
