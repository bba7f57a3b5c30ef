"""Rows of an embedding that are read and have a gradient of exactly 0: what the update makes of them.

V rows of an embedding, D its width, K of the ids that are read, R rows that are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trueline.capture.model import patches
from trueline.capture.model.layout import clean_name, unwrap
from trueline.capture.probes.around_update.sampling import Waiting
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts
from trueline.laws.optimizer.columns import MaskedRows, masked_text
from trueline.laws.optimizer.probe.early_looks import EarlyLooks

MAX_EMBEDDINGS, MAX_IDS, MAX_ROWS = 4, 4096, 64
"""Embeddings that are looked at, ids of a call, and rows that are compared over the update."""


@dataclass
class _Embedding:
    """``read_V`` are rows that were read, ``moved_V`` those of them that had a gradient; of a step, ids of its calls,
    ``rows_R`` that are compared, ``is_masked_R`` and their values in front of the update.
    """

    name: str
    module: nn.Embedding
    weight: nn.Parameter
    read_V: Tensor
    moved_V: Tensor
    ids: list[Tensor] = field(default_factory=list[Tensor])
    rows_R: Tensor | None = None
    is_masked_R: Tensor | None = None
    before_RD: Tensor | None = None
    group: tuple[float, float] = (0.0, 0.0)


class MaskedRowsProbe:
    """The columns ``masked_facts`` and ``masked_rows``, of a few early steps, of embeddings that are decayed."""

    name = "masked rows"
    moments = ("gradients", "updated")
    between = None

    def __init__(self, parts: ProbeParts) -> None:
        self._model, self._guard = parts.model, parts.guard
        self._embeddings: dict[int, _Embedding] | None = None
        self._looks = EarlyLooks()
        self._waiting = Waiting[str]()
        self._listens = False

    def begin(self, step: Step) -> bool:
        if self._listens:
            self._listen(False)
        if not self._looks.is_due(step):
            return False
        if self._embeddings is None:
            self._embeddings = _embeddings(self._model)
        self._forget()
        if self._embeddings:
            self._listen(True)
        return bool(self._embeddings)

    def detach(self) -> None:
        self._listen(False)
        self._embeddings = {}

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """``masked_rows`` float64 [4 an embedding]; absent where none is decayed."""
        if moment == "gradients":
            self._listen(False)
            if step.gradients_known and step.optimizer is not None:
                for embedding in (self._embeddings or {}).values():
                    _before(embedding, step.optimizer)
            return {}
        looked_at = [seen for seen in (self._embeddings or {}).values() if seen.before_RD is not None]
        self._looks.took(step)
        if not looked_at:
            self._forget()
            return {}
        facts = [
            MaskedRows(embedding.name, len(embedding.weight), *embedding.group, 0, 0, 0.0, 0.0)
            for embedding in looked_at
        ]
        self._waiting.add(step.number, masked_text(facts))
        numbers = torch.cat([_after(embedding).to(step.layout.device) for embedding in looked_at])
        self._forget()
        return {"masked_rows": numbers}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        text = self._waiting.take(step.number)
        if text is None or "masked_rows" not in host:
            return {}
        return {"masked_facts": text, "masked_rows": host["masked_rows"].tolist()}

    def _listen(self, listens: bool) -> None:
        """Whether calls of all modules are seen, which costs each of them: in steps that are looked at alone."""
        self._listens = listens
        (patches.module_call.add if listens else patches.module_call.remove)(self._at_call)

    def _forget(self) -> None:
        for embedding in (self._embeddings or {}).values():
            embedding.ids, embedding.rows_R, embedding.is_masked_R, embedding.before_RD = [], None, None, None

    def _at_call(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        embedding = (self._embeddings or {}).get(id(module))
        if embedding is None or not torch.is_grad_enabled():
            return
        with self._guard(self.name), torch.no_grad():
            ids = args[0] if args else kwargs.get("input")
            if type(ids) is Tensor and ids.numel() and not ids.is_floating_point():
                flat = ids.detach().flatten()
                embedding.ids.append(flat[:: -(-len(flat) // MAX_IDS)].long().clone())


def _embeddings(model: nn.Module) -> dict[int, _Embedding]:
    """The first that are trained and held whole, by the identity of their module."""
    embeddings: dict[int, _Embedding] = {}
    for name, module in unwrap(model).named_modules():
        weight = module._parameters.get("weight") if type(module) is nn.Embedding else None
        plain = type(weight) is nn.Parameter and weight.requires_grad and weight.layout == torch.strided
        if weight is not None and plain and weight.numel() and len(embeddings) < MAX_EMBEDDINGS:
            flags_V = torch.zeros(0, dtype=torch.bool)
            embeddings[id(module)] = _Embedding(clean_name(f"{name}.weight"), module, weight, flags_V, flags_V)
    return embeddings


def _before(embedding: _Embedding, optimizer: Optimizer) -> None:
    """Note which rows were read and have a gradient, and the values of some that have none."""
    weight, grad = embedding.weight, embedding.weight.grad
    group = next((group for group in optimizer.param_groups if any(p is weight for p in group["params"])), None)
    decay, rate = (0.0, 0.0) if group is None else (group.get("weight_decay"), group.get("lr"))
    is_plain = grad is not None and type(grad) is Tensor and grad.layout == torch.strided and grad.shape == weight.shape
    if not is_plain or not embedding.ids or not isinstance(decay, float | int) or not decay or grad is None:
        return
    num, device = len(weight), weight.device
    if not len(embedding.read_V):
        embedding.read_V = torch.zeros(num, dtype=torch.bool, device=device)
        embedding.moved_V = embedding.read_V.clone()
    ids_K = torch.cat(embedding.ids).to(device).clamp(0, num - 1)
    moved_K = (grad.index_select(0, ids_K) != 0).any(1)
    embedding.read_V.index_fill_(0, ids_K, True)
    embedding.moved_V |= torch.zeros(num, device=device).index_add_(0, ids_K, moved_K.float()) > 0
    if embedding.module.padding_idx is not None:
        embedding.read_V[embedding.module.padding_idx] = False
    masked_V = embedding.read_V & ~embedding.moved_V & (grad.new_zeros(num).index_fill_(0, ids_K, 1.0) > 0)
    is_masked_R, rows_R = torch.topk(masked_V.float(), min(MAX_ROWS, num))
    embedding.rows_R, embedding.is_masked_R = rows_R, is_masked_R
    embedding.before_RD = weight.detach().index_select(0, rows_R).double()
    embedding.group = float(decay), float(rate) if isinstance(rate, float | int) else 0.0


def _after(embedding: _Embedding) -> Tensor:
    """Float64 [4]: rows that were read so far, those of them without a gradient, by which factor the update has
    multiplied those that are compared, and how far they are from that, beside their length.
    """
    assert embedding.before_RD is not None
    assert embedding.is_masked_R is not None
    assert embedding.rows_R is not None
    before_RD = embedding.before_RD * embedding.is_masked_R[:, None]
    after_RD = embedding.weight.detach().index_select(0, embedding.rows_R).double() * embedding.is_masked_R[:, None]
    square = before_RD.square().sum()
    factor = (after_RD * before_RD).sum() / square
    residual = ((after_RD - factor * before_RD).square().sum() / square).sqrt()
    masked_V = embedding.read_V & ~embedding.moved_V
    return torch.stack([embedding.read_V.sum().double(), masked_V.sum().double(), factor, residual])


def make_probe(parts: ProbeParts) -> MaskedRowsProbe:
    """The probe of this law for one watched model."""
    return MaskedRowsProbe(parts)
