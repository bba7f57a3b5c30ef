"""K2. Nothing trains a parameter any more that was trained before.

Who had it: pytorch#115607 (a captured update goes on without what had no gradient for a while), SkyRL#852 (an adapter
in a slot that was cleared: both of its factors are zeros).
Planted: both, at step TRIGGER.
Twin: the update is captured anew; one of the factors is drawn.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import PARAMETERS_OF_OPTIMIZERS
from gallery.problems import Regression
from gallery.training import fit
from gallery.witness import trains_differently

TRIGGER, STEPS = 6, 26


class Captured(torch.optim.SGD):
    """Goes on with the parameters that had a gradient when it was ``captured``."""

    captured: list[nn.Parameter] | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Of those alone."""
        del closure
        (group,) = self.param_groups
        with_gradient = [param for param in group["params"] if param.grad is not None]
        if self.captured is None or any(param.grad is None for param in self.captured):
            self.captured = with_gradient
        for param in self.captured:
            param.add_(param.grad, alpha=-group["lr"])


def captured(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One step is made without the first layer."""
    model: Any = Regression().model()
    optimizer = Captured(model.parameters(), lr=0.05)

    def leave_out(step: int) -> None:
        if step == TRIGGER:
            model[0].zero_grad()
        elif step > TRIGGER and not faulty:
            optimizer.captured = None

    return fit(ctx, Regression(), model, optimizer=optimizer, steps=STEPS, after_backward=leave_out)


class Adapted(nn.Module):
    """A linear layer and a product of two factors, for [B, features]."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(Regression.num_features, 4)
        self.down = nn.Parameter(torch.randn(4, Regression.num_features) / 4)
        self.up = nn.Parameter(torch.zeros(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        """[B, 4]."""
        return self.base(x) + x @ self.down.T @ self.up.T


def cleared(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Both factors are set to zeros, and the first is drawn anew or not."""
    model = Adapted()

    def clear(step: int) -> None:
        if step == TRIGGER - 1:
            with torch.no_grad():
                model.up.zero_()
                model.down.zero_() if faulty else model.down.normal_(std=0.25)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return fit(ctx, Regression(), model, optimizer=optimizer, steps=STEPS, after_step=clear)


_fault = variants(
    "K2",
    ("param-stops",),
    trains_differently,
    ranks=(0,),
    world_size=1,
    family=PARAMETERS_OF_OPTIMIZERS,
)

ENTRIES = (
    _fault(
        "",
        "a captured update goes on without a layer that once had no gradient",
        captured,
        step=TRIGGER + 1,
        site="0.",
        causes=("update-captured-too-early",),
    ),
    _fault(
        "cleared",
        "both factors of an adapter become zeros",
        cleared,
        step=TRIGGER,
        site="down",
        causes=("gradient-became-zero",),
    ),
)
