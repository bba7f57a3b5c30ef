"""K1. The optimizer does not hold what the model trains, or its state is not that of its updates.

Who had it: modules whose parameters are in no group (HVPNeT#5), layers that are unfrozen or replaced while training
goes on (accelerate#2665), heads that are untied after the optimizer was made, parameters listed twice, decay by hand of
all parameters; optimizers that are made or loaded anew between epochs (Automodel#763, distiller#145).
Planted: each of these, at the start or after step 5.
Twin: a group for what is added, one entry for each parameter, and the optimizer left alone.
"""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from typing import Any

import torch
from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import KERNELS_OF_OPTIMIZERS, PARAMETERS_OF_OPTIMIZERS
from gallery.problems import CausalLM, Regression
from gallery.training import fit
from gallery.witness import trains_differently

TRIGGER = 6


def _adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=3e-3, foreach=False)


def forgotten(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The last layer is in no group."""
    model: Any = Regression().model()
    return fit(ctx, Regression(), model, optimizer=_adamw((model[:4] if faulty else model).parameters()))


def unfrozen(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The first layer is frozen at first; it is added to the optimizer when it is unfrozen, or not."""
    model: Any = Regression().model()
    model[0].requires_grad_(False)
    optimizer = _adamw(model[1:].parameters())

    def unfreeze(step: int) -> None:
        if step == TRIGGER - 1:
            model[0].requires_grad_()
            if not faulty:
                optimizer.add_param_group({"params": list(model[0].parameters())})

    return fit(ctx, Regression(), model, optimizer=optimizer, after_step=unfreeze)


def replaced(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The last layer is replaced while training goes on."""
    model: Any = Regression().model()
    optimizer = _adamw(model.parameters())

    def replace(step: int) -> None:
        if step == TRIGGER - 1:
            other: Any = Regression().model(seed=1)[4]
            if faulty:
                model[4] = other
            else:
                model[4].load_state_dict(other.state_dict())

    return fit(ctx, Regression(), model, optimizer=optimizer, after_step=replace)


def untied(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A head that was tied to the embedding gets a weight of its own after the optimizer was made."""
    model: Any = CausalLM(tied=True).model()
    optimizer = _adamw(model.parameters())
    if faulty:
        model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    return fit(ctx, CausalLM(tied=True), model, optimizer=optimizer)


def twice(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The last bias is listed twice."""
    model: Any = Regression().model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = _adamw([*model.parameters(), *([model[4].bias] if faulty else [])])
    return fit(ctx, Regression(), model, optimizer=optimizer)


def decayed_by_hand(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Decay by hand of all parameters, those of a frozen layer among them."""
    model: Any = Regression().model()
    model[0].requires_grad_(False)
    decayed = list((model if faulty else model[1:]).parameters())

    def decay(step: int) -> None:
        with torch.no_grad():
            for param in decayed:
                param *= 1 - 1e-4

    return fit(ctx, Regression(), model, after_backward=decay)


def state_cleared(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The state is thrown away after an epoch."""
    model = Regression().model()
    optimizer = _adamw(model.parameters())

    def clear(step: int) -> None:
        if faulty and step == TRIGGER - 1:
            optimizer.state = defaultdict(dict)

    return fit(ctx, Regression(), model, optimizer=optimizer, after_step=clear)


def state_older(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The state of an older checkpoint is loaded, its weights are not."""
    model = Regression().model()
    optimizer = _adamw(model.parameters())
    kept: list[Any] = []

    def load(step: int) -> None:
        if step == 2:
            kept.append(copy.deepcopy(optimizer.state_dict()))
        if faulty and step == TRIGGER - 1:
            optimizer.load_state_dict(kept[0])

    return fit(ctx, Regression(), model, optimizer=optimizer, after_step=load)


def count_lost(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Moments are kept, and their count of updates begins again."""
    model = Regression().model()
    optimizer = _adamw(model.parameters())

    def lose(step: int) -> None:
        if faulty and step == TRIGGER - 1:
            for state in optimizer.state.values():
                state["step"].zero_()

    return fit(ctx, Regression(), model, optimizer=optimizer, after_step=lose)


_fault = variants(
    "K1",
    ("optimizer-detached",),
    trains_differently,
    ranks=(0,),
    world_size=1,
    family=PARAMETERS_OF_OPTIMIZERS,
    causes=("optimizer-lacks-parameters",),
)
_state = variants(
    "K1",
    ("optimizer-state-stale",),
    trains_differently,
    may_find=("update-magnitude",),
    ranks=(0,),
    world_size=1,
    step=TRIGGER,
    family=KERNELS_OF_OPTIMIZERS,
    causes=("optimizer-state-not-advanced",),
)

ENTRIES = (
    _fault("", "the last layer is in no group of the optimizer", forgotten, site="4."),
    _fault("unfrozen", "an unfrozen layer is not added to the optimizer", unfrozen, step=TRIGGER, site="0."),
    _fault("replaced", "a layer is replaced after the optimizer was made", replaced, step=TRIGGER, site="4."),
    _fault("untied", "a head is untied after the optimizer was made", untied, site="head"),
    _fault(
        "twice",
        "a parameter is listed twice",
        twice,
        must_find=("update-magnitude|optimizer-state-stale",),
        may_find=("update-magnitude", "optimizer-state-stale"),
        site="4.bias",
        causes=("update-rule-differs", "optimizer-state-not-advanced"),
    ),
    _fault(
        "decay",
        "decay by hand moves a frozen layer",
        decayed_by_hand,
        must_find=("param-moves-without-gradient",),
        site="0.",
        causes=("frozen-parameters-move",),
    ),
    _state("cleared", "the optimizer's state is thrown away after an epoch", state_cleared),
    _state("older", "an older state is loaded into the optimizer", state_older),
    _state("count", "the count of updates begins again", count_lost),
)
