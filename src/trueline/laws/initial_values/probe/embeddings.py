"""Look at rows of embeddings before the first update: that of padding, and the last ones of what is frozen.

R rows, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.model.contents import Walk, attributes
from trueline.capture.model.layout import clean_name
from trueline.capture.probes.base import Step
from trueline.laws.initial_values.columns import (
    MAX_EMBEDDINGS,
    MAX_OTHERS,
    MAX_ROWS,
    Embedding,
    embeddings_text,
)

MAX_BATCHES = 4
"""Micro-batches whose ids are looked at."""
_WRAPPED = ("base_layer", "original_module", "base")
"""Names by which adapters have the layer that they are around."""
_NO_TOKENS = ("label", "target", "mask", "type", "position", "segment", "length")
"""Parts of names of arguments that hold integers which are no rows of an embedding of tokens."""


class EmbeddingRows:
    """Of one step, the columns ``embeddings`` and ``embedding_values``."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._ids: list[tuple[Tensor, Tensor | None]] = []

    def see(self, step: Step) -> None:
        """The batch of a forward pass."""
        # without anything that is frozen no last rows are looked at
        if step.layout.frozen and len(self._ids) < MAX_BATCHES:
            self._ids += _token_ids(step.args, step.kwargs)

    def take(self, step: Step) -> dict[str, Any]:
        """``embeddings`` and, float64 [K], ``embedding_values``; nothing where no embedding is to be looked at."""
        ids, self._ids = self._ids, []
        embeddings = list(_embeddings(self._model))[:MAX_EMBEDDINGS]
        if not embeddings:
            return {}
        values = [_values(embedding, weight, ids).to(step.layout.device) for embedding, weight in embeddings]
        text = embeddings_text([embedding for embedding, _ in embeddings])
        return {"embeddings": text, "embedding_values": torch.cat(values)}


def _token_ids(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Matrices of integers that a batch has, with the mask of the same shape, if there is one."""
    tensors = list(Walk().tensors("args", args)) + list(Walk().tensors("", dict(kwargs)))
    masks = [value for name, value in tensors if name.endswith("attention_mask")]
    for name, value in tensors:
        is_ids = value.dtype in (torch.int64, torch.int32) and value.dim() > 1
        if is_ids and not any(part in name for part in _NO_TOKENS):
            yield value, next((mask for mask in masks if mask.shape == value.shape), None)


def _embeddings(model: nn.Module) -> Iterator[tuple[Embedding, Tensor]]:
    modules = {clean_name(name): module for name, module in model.named_modules()}
    trained = [clean_name(name) for name, param in model.named_parameters() if param.requires_grad]
    sizes = {size for module in modules.values() if type(size := attributes(module).get("vocab_size")) is int}
    for name, module in modules.items():
        weight = module._parameters.get("weight") if isinstance(module, nn.Embedding) else None
        # a shard has not all rows
        if weight is None or type(weight) is not nn.Parameter or weight.dim() != 2 or not _is_readable(weight):
            continue
        trains = weight.requires_grad or _has_adapter(name, trained)
        padding = attributes(module).get("padding_idx")
        padding = padding if type(padding) is int and 0 <= padding < len(weight) else -1
        if trains and padding < 0:
            continue
        smaller = [size for size in sizes if len(weight) // 2 <= size < len(weight)]
        last = 0 if trains else min(MAX_ROWS, len(weight) // 2)
        declared = max(smaller, default=-1) if last else -1
        yield Embedding(f"{name}.weight", len(weight), weight.shape[1], padding, declared, trains, last), weight


def _is_readable(weight: Tensor) -> bool:
    return weight.is_floating_point() and weight.layout is torch.strided and weight.numel() > 0


def _has_adapter(name: str, trained: list[str]) -> bool:
    """True where what is around the embedding has parameters that are trained."""
    around, _, last = name.rpartition(".")
    return last in _WRAPPED and any(param.startswith(f"{around}.") for param in trained)


def _values(embedding: Embedding, weight: Tensor, ids: list[tuple[Tensor, Tensor | None]]) -> Tensor:
    """Float64 [K]: see the column."""
    rows_RD = weight.detach()
    num = len(rows_RD) - embedding.last
    others_RD = rows_RD[: num : max(num // MAX_OTHERS, 1)].double()
    norms_R = others_RD.norm(dim=1)
    numbers_R = torch.arange(num, device=weight.device)[:: max(num // MAX_OTHERS, 1)]
    is_row_R = (numbers_R != embedding.padding).double()
    count = is_row_R.sum()
    mean_D = (others_RD * is_row_R[:, None]).sum(0) / count
    distances_R = (others_RD - mean_D).norm(dim=1) * is_row_R
    mean = (norms_R * is_row_R).sum() / count
    spread = ((norms_R - mean).square() * is_row_R).sum().div(count).sqrt()
    smallest = torch.where(is_row_R > 0, norms_R, float("inf")).min()
    padding = rows_RD[embedding.padding].double().norm() if embedding.padding >= 0 else mean.new_zeros(())
    head = torch.stack([mean, spread, smallest, (norms_R * is_row_R).max(), distances_R.sum() / count, padding])
    if not embedding.last:
        return head
    last_RD = rows_RD[num:].double()
    reads_R = torch.zeros(len(rows_RD), dtype=torch.float64, device=weight.device)
    for batch, mask in ids:
        flat = batch.to(weight.device).reshape(-1).long()
        is_read = (flat >= 0) & (flat < len(rows_RD)) & (flat != embedding.padding)
        if mask is not None:
            is_read = is_read & (mask.to(weight.device).reshape(-1) != 0)
        reads_R.index_put_((flat.clamp(0, len(rows_RD) - 1),), is_read.double(), accumulate=True)
    table = torch.stack([last_RD.norm(dim=1), (last_RD - mean_D).norm(dim=1), (reads_R[num:] > 0).double()], dim=1)
    return torch.cat([head, table.reshape(-1)])
