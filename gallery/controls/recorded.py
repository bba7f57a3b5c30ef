"""Healthy runs with recorded steps that hold infinities, or values that grow and overflow on purpose."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional

from gallery.entry import Control
from gallery.entry_context import EntryContext
from gallery.problems import CausalLM, Checkpointing, Regression
from gallery.sharding import sharded
from gallery.training import fit, sgd, under_autocast, wrapped

STEPS = 8


class PaddedAttention(nn.Module):
    """Causal attention by hand over padded sequences, with a mask of -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, x_BLD: Tensor, length_B: Tensor) -> Tensor:
        """[B, 4] from the last position of each sequence."""
        q_BLD, k_BLD, v_BLD = self.qkv(x_BLD).chunk(3, -1)
        num = x_BLD.shape[1]
        hidden_BLL = torch.arange(num) >= length_B[:, None, None]
        hidden_BLL = hidden_BLL | torch.full((num, num), -math.inf).triu(1).isinf()
        scores_BLL = (q_BLD @ k_BLD.mT).masked_fill(hidden_BLL, -math.inf)
        mixed_BLD = torch.softmax(scores_BLL, -1) @ v_BLD
        return self.head(mixed_BLD[torch.arange(len(x_BLD)), length_B - 1])


def padded(ctx: EntryContext) -> nn.Module:
    """Masks of -inf, and padding."""
    model = wrapped(PaddedAttention())

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        length_B = torch.arange(len(batch["x"])) % 4 + 1
        x_BLD = batch["x"].view(-1, 4, 4)
        return functional.mse_loss(called(x_BLD, length_B), batch["y"])

    return fit(ctx, Regression(), model, lr=0.01, steps=STEPS, loss_of=loss_of, plan={"preset": "mix"})


def scaler(ctx: EntryContext) -> nn.Module:
    """Float16 autocast with a gradient scaler that starts too high: the first steps overflow and are skipped."""
    problem = CausalLM()
    model = wrapped(problem.model())
    optimizer = sgd(model, lr=0.01)
    return fit(
        ctx,
        problem,
        model,
        optimizer=optimizer,
        scaler=GradScaler("cpu", init_scale=2.0**22, growth_interval=1000),
        steps=STEPS,
        loss_of=under_autocast(problem, torch.float16),
        watch=ctx.watch(model, optimizer, preset="mix"),
    )


def language_model(ctx: EntryContext, *, checkpointing: Checkpointing, preset: str) -> nn.Module:
    """A language model in bfloat16 autocast, with dropout."""
    problem = CausalLM(dropout=0.1, checkpointing=checkpointing)
    loss_of = under_autocast(problem, torch.bfloat16)
    return fit(ctx, problem, steps=STEPS, loss_of=loss_of, plan={"preset": preset})


def fsdp(ctx: EntryContext) -> nn.Module:
    """A language model under FSDP2."""
    problem = CausalLM()
    model = sharded(problem.model())
    return fit(ctx, problem, model, steps=STEPS, plan={"preset": "mix"})


ENTRIES = (
    Control("healthy.recorded-padding", "masks of -inf and padding, recorded", padded),
    Control("healthy.recorded-scaler", "a gradient scaler that starts too high, recorded", scaler),
    Control(
        "healthy.recorded-bfloat16",
        "bfloat16 autocast and dropout, recorded",
        partial(language_model, checkpointing="none", preset="ops"),
    ),
    Control(
        "healthy.recorded-checkpointing",
        "activation checkpointing, recorded",
        partial(language_model, checkpointing="non-reentrant", preset="mix"),
    ),
    Control("healthy.recorded-fsdp", "FSDP2, recorded", fsdp),
)
