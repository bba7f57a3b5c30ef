"""U3. The optimizer holds other parameters than those that train.

Who had it: optimizers that are made before the model is copied, cast, wrapped or loaded; backbones that are frozen
later, whose gradients stay as tensors of zeros, so that momentum and decay go on moving them.
Planted: an optimizer of a copy of the model; a layer that is frozen before step 6 while ``zero_grad`` fills with zeros.
Twin: an optimizer of the model; gradients that are dropped.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import PARAMETERS_OF_OPTIMIZERS
from gallery.problems import Regression
from gallery.training import adamw, fit
from gallery.witness import trains_differently

TRIGGER = 6


def detached(ctx: EntryContext, faulty: bool) -> nn.Module:
    """An optimizer that was made for a copy."""
    problem = Regression()
    model = problem.model()
    return fit(ctx, problem, model, optimizer=adamw(copy.deepcopy(model) if faulty else model))


class _Keeping(torch.optim.AdamW):
    """Keeps gradients as tensors of zeros, as ``zero_grad`` did by default before torch 2.0."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none=False)


def frozen_late(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The first layer is frozen while training goes on."""
    problem = Regression()
    model: Any = problem.model()
    optimizer = (_Keeping if faulty else torch.optim.AdamW)(model.parameters(), lr=3e-3)

    def freeze(step: int) -> None:
        if step == TRIGGER - 1:
            model[0].requires_grad_(False)

    return fit(ctx, problem, model, optimizer=optimizer, after_step=freeze)


def cleared(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Gradients are cleared between the backward pass and the update."""
    problem = Regression()
    model = problem.model()
    optimizer = adamw(model)
    return fit(
        ctx,
        problem,
        model,
        optimizer=optimizer,
        after_backward=lambda step: optimizer.zero_grad() if faulty else None,
    )


_fault = variants(
    "U3",
    ("optimizer-detached",),
    trains_differently,
    ranks=(0,),
    world_size=1,
    family=PARAMETERS_OF_OPTIMIZERS,
    causes=("optimizer-of-other-parameters",),
)

ENTRIES = (
    _fault("", "the optimizer holds a copy of the model", detached),
    _fault(
        "frozen",
        "a frozen layer is still moved",
        frozen_late,
        must_find=("param-moves-without-gradient",),
        step=TRIGGER,
        site="0.weight",
        causes=("frozen-parameters-move",),
    ),
    _fault(
        "cleared",
        "gradients are cleared before the update",
        cleared,
        must_find=("update-without-gradient",),
        causes=("gradients-cleared-before-update",),
    ),
)
