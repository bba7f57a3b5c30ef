"""Rows of weights that have had no gradient so far.

W weights, R rows of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from trueline.capture.model.layout import clean_name, unwrap
from trueline.capture.probes.around_update.sampling import Waiting
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts
from trueline.laws.optimizer.columns import MIN_ROWS, rows_text
from trueline.laws.optimizer.probe.early_looks import EarlyLooks

MAX_WEIGHTS = 128
"""Weights that are looked at, at equal distances among those of the model."""


@dataclass
class _Rows:
    """Of ``weights``: by row its weight, its place there, whether it is the first there, and whether it was reached."""

    weights: list[nn.Parameter]
    weight_R: Tensor
    place_R: Tensor
    is_first_R: Tensor
    is_reached_R: Tensor


class UnusedRowsProbe:
    """The columns ``row_facts`` and ``unused_rows``, of a few early steps."""

    name = "unused rows"
    moments = ("gradients",)
    between = None

    def __init__(self, parts: ProbeParts) -> None:
        self._model = parts.model
        self._rows: _Rows | None = None
        self._text = ""
        self._looks = EarlyLooks()
        self._waiting = Waiting[str]()

    def begin(self, step: Step) -> bool:
        return self._looks.is_due(step)

    def detach(self) -> None:
        self._looks.stop()
        self._rows = None

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """``unused_rows`` float64 [4 a weight]; absent where the model has no weight of the kind."""
        if self._rows is None:
            named = _named_weights(self._model)
            self._text = rows_text([(name, len(weight)) for name, weight in named])
            self._rows = _rows([weight for _, weight in named], step.layout.device)
        rows = self._rows
        if not rows.weights:
            self._looks.stop()
            return {}
        self._looks.took(step)
        self._waiting.add(step.number, self._text)
        numbers = _look(rows)
        if not self._looks.num_left:
            self._rows = None
        return {"unused_rows": numbers}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        text = self._waiting.take(step.number)
        if text is None or "unused_rows" not in host:
            return {}
        return {"row_facts": text, "unused_rows": host["unused_rows"].tolist()}


def _named_weights(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Those whose first dimension is the output, that are trained, held whole and no table of an embedding."""
    modules = [*unwrap(model).named_modules()]
    tables = {id(module.weight) for _, module in modules if isinstance(module, nn.Embedding)}
    named: dict[int, tuple[str, nn.Parameter]] = {}
    for name, module in modules:
        if not isinstance(module, nn.Linear) and not (isinstance(module, _ConvNd) and not module.transposed):
            continue
        weight = module._parameters.get("weight")
        if type(weight) is not nn.Parameter or not weight.requires_grad or id(weight) in tables:
            continue
        if weight.layout == torch.strided and weight.dim() > 1 and len(weight) >= 2 * MIN_ROWS and weight.numel():
            named.setdefault(id(weight), (clean_name(f"{name}.weight"), weight))
    return [*named.values()][:: -(-len(named) // MAX_WEIGHTS) or 1]


def _rows(weights: list[nn.Parameter], device: torch.device) -> _Rows:
    nums = [len(weight) for weight in weights]
    weight_R = torch.arange(len(nums)).repeat_interleave(torch.tensor(nums, dtype=torch.long))
    place_R = torch.cat([torch.arange(num) for num in nums]) if nums else weight_R
    is_first_R = place_R == 0
    return _Rows(weights, *(rows.to(device) for rows in (weight_R, place_R, is_first_R, torch.zeros_like(is_first_R))))


def _look(rows: _Rows) -> Tensor:
    """Float64 [4 a weight]: rows with a gradient now; rows that never had one, how many runs these make, and the sum of
    the places at which runs begin.
    """
    device = rows.place_R.device
    is_now_R = torch.cat([_largest(weight).to(device) for weight in rows.weights]) != 0
    rows.is_reached_R |= is_now_R
    is_never_R = ~rows.is_reached_R
    is_begin_R = is_never_R & (rows.is_first_R | rows.is_reached_R.roll(1))
    numbers_R4 = torch.stack([is_now_R, is_never_R, is_begin_R, is_begin_R * rows.place_R], 1).double()
    return numbers_R4.new_zeros(len(rows.weights), 4).index_add_(0, rows.weight_R, numbers_R4).flatten()


def _largest(weight: nn.Parameter) -> Tensor:
    """The largest magnitude of the gradient in each row, 0 without one."""
    grad = weight.grad
    if grad is None or type(grad) is not Tensor or grad.layout != torch.strided or grad.shape != weight.shape:
        return torch.zeros(len(weight), device=weight.device)
    # makes no copy of the gradient, as a comparison with 0 would
    return torch.linalg.vector_norm(grad.detach(), torch.inf, dim=tuple(range(1, grad.dim()))).float()


def make_probe(parts: ProbeParts) -> UnusedRowsProbe:
    """The probe of this law for one watched model."""
    return UnusedRowsProbe(parts)
