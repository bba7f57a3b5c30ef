"""Faults of training with rounded weights and activations."""

from __future__ import annotations

import torch
from benchmarks.compare.corpus.kit import FIRST, OPTIMIZER, STRUCTURE, Training, fault
from torch import Tensor

EITHER = (FIRST, STRUCTURE)
BOTH = ("fwd", "bwd", "grad")


@fault(
    "qat", "straight-through forgotten", "gradient", "fc2.of_input:add|sub|detach|round|clamp", phase=BOTH, codes=EITHER
)
def _(t: Training) -> None:
    quant = t.model.fc2.of_input
    quant.forward = lambda x: quant.rounded(x.clamp(-quant.most, quant.most))


@fault("qat", "detached with what is rounded", "gradient", "fc1.of_weight:detach|add|sub", phase=BOTH, codes=EITHER)
def _(t: Training) -> None:
    quant = t.model.fc1.of_weight

    def forward(x: Tensor) -> Tensor:
        x = x.clamp(-quant.most, quant.most)
        return (x + (quant.rounded(x) - x)).detach()

    quant.forward = forward


@fault("qat", "floor for round", "decision", "fc1.of_input:round|floor", codes=EITHER)
def _(t: Training) -> None:
    quant = t.model.fc1.of_input
    quant.rounded = lambda x: torch.floor(x / quant.step) * quant.step


@fault("qat", "coarser steps", "decision", "fc2.of_weight:truediv|div|round|mul")
def _(t: Training) -> None:
    t.model.fc2.of_weight.step = 1 / 32


@fault("qat", "clamped lower", "numerics", "fc2.of_input:clamp")
def _(t: Training) -> None:
    t.model.fc2.of_input.most = 1.5


@fault("qat", "weights that are not rounded", "structure", ("fc1.of_weight", "fc1:linear"), codes=EITHER)
def _(t: Training) -> None:
    t.model.fc1.of_weight = torch.nn.Identity()


@fault("qat", "beta2 0.99", "setting", "Adam:-", phase=("opt", "param"), codes=OPTIMIZER, word="betas")
def _(t: Training) -> None:
    t.settings = {**t.settings, "betas": (0.9, 0.99)}
