"""Summarise the parameters before the first update, in a few numbers each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trueline.capture.model.layout import Layout, local
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts
from trueline.laws.initial_values.columns import MAX_LOOKED, NUM_FIELDS, SMALLEST_NORMAL


class InitialValueProbe:
    """The column ``initial_values``, once: just before the update of the first step that is watched."""

    name = "initial values"
    moments = ("update",)
    between = None

    def begin(self, step: Step) -> bool:
        return step.watched and step.age == 0

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        return {"initial_values": initial_values(step.layout)}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: host[name].flatten().tolist() for name in ("initial_values",) if name in host}


def initial_values(layout: Layout) -> Tensor:
    """Float64 [P, fields]: ``InitialValues`` of each watched parameter, on the device of the model."""
    rows = [numbers_of(local(param).detach()) for param in layout.params]
    return torch.stack([row.to(layout.device) for row in rows])


def numbers_of(param: Tensor) -> Tensor:
    """Float64 [fields] of ``InitialValues``; zeros of what has no elements here, or none that can be read."""
    if param.layout is not torch.strided or not param.is_floating_point() or not param.numel():
        return torch.zeros(NUM_FIELDS, dtype=torch.float64)
    x = _spread_elements(param).to(torch.float64)
    finite = x.isfinite()
    num = finite.sum()
    values = torch.where(finite, x, 0.0)
    mean = values.sum() / num
    squares = torch.where(finite, values - mean, 0.0).square()
    variance = squares.sum() / num
    magnitudes = values.abs()
    subnormal = ((magnitudes > 0) & (magnitudes < SMALLEST_NORMAL)).sum()
    kurtosis = squares.square().sum() / num / variance.square()
    counts = [num.new_full((), x.numel()), x.numel() - num, subnormal]
    return torch.stack([number.double() for number in (*counts, mean, variance.sqrt(), kurtosis, magnitudes.max())])


def _spread_elements(param: Tensor) -> Tensor:
    """Up to ``MAX_LOOKED`` elements, at a distance that is prime to their number, so that they are of all columns."""
    distance = max(param.numel() // MAX_LOOKED, 1)
    while distance > 1 and math.gcd(distance, param.numel()) > 1:
        distance += 1
    return param.reshape(-1)[::distance]


def make_probe(parts: ProbeParts) -> InitialValueProbe:
    """The probe of this law for one watched model."""
    del parts
    return InitialValueProbe()
