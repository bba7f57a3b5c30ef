"""W2. All tokens together weigh another number than 1.

Who had it: loops with gradient accumulation that forget to divide; losses with a constant left in from an experiment.
Planted: four micro-batches a step whose means are added up; a loss that is 1.1 times the mean, under a gradient scaler.
Twin: the means divided by four; the mean itself, under the same scaler.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trueline.testing.entry import family
from trueline.testing.entry_context import EntryContext
from trueline.testing.problems import CausalLM
from trueline.testing.training import fit, fit_accumulating
from trueline.testing.witness import trains_differently

NUM_MICRO = 4


def undivided(ctx: EntryContext, faulty: bool) -> nn.Module:
    """DDP, reduced at the last of four micro-batches."""
    problem = CausalLM()

    def loss_of(model: nn.Module, batch: Any, micro: int) -> Tensor:
        return problem.loss(model, batch) * (NUM_MICRO if faulty else 1)

    return fit_accumulating(ctx, problem, num_micro=NUM_MICRO, loss_of=loss_of)


def multiplied(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One process under a gradient scaler."""
    problem = CausalLM()

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return problem.loss(model, batch) * (1.1 if faulty else 1)

    return fit(ctx, problem, problem.model(), loss_of=loss_of, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))


_fault = family("W2", ("loss-scale-wrong",), trains_differently, ranks=(0, 1))

ENTRIES = (
    _fault("", "the loss is not divided by the micro-batches of a step", undivided),
    _fault("constant", "the loss is 1.1 times the mean", multiplied, ranks=(0,), world_size=1),
)
