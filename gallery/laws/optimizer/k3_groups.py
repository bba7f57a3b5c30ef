"""K3. Two optimizers update the same parameters. K4. Weight decay applies to what was to be spared.

Who had it: MishaLaskin/curl#28 (an encoder is in its own optimizer and in that of the loss), transformers#35927 (what
is spared is found by a name that the model does not have).
Planted: both.
Twin: the second optimizer holds what is its own; norms are spared by what they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gallery.entry import Fault
from gallery.entry_context import EntryContext
from gallery.families import PARAMETERS_OF_OPTIMIZERS
from gallery.problems import Regression
from gallery.training import fit
from gallery.witness import trains_differently

STEPS = 6


def shared(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The first layer has an optimizer, and the model has one that holds it or not."""
    model: Any = Regression().model()
    encoder = torch.optim.Adam(model[0].parameters(), lr=1e-3)
    rest = torch.optim.Adam((model if faulty else model[1:]).parameters(), lr=1e-3)

    def both(step: int) -> None:
        encoder.step()

    return fit(
        ctx,
        Regression(),
        model,
        optimizer=rest,
        steps=STEPS,
        after_backward=both,
        after_step=lambda step: encoder.zero_grad(),
    )


def decayed(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Spared is what is called so in another model."""
    model: Any = Regression().model()
    model.insert(1, nn.RMSNorm(model[0].out_features))
    names = ("bias", "LayerNorm") if faulty else ("bias", "1.weight")
    groups = [
        {"params": [p for n, p in model.named_parameters() if not n.endswith(names)], "weight_decay": 0.5},
        {"params": [p for n, p in model.named_parameters() if n.endswith(names)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    return fit(ctx, Regression(), model, optimizer=optimizer, steps=STEPS)


ENTRIES = (
    Fault(
        "K3",
        "the first layer is in two optimizers",
        shared,
        ("updated-twice",),
        trains_differently,
        ranks=(0,),
        step=2,
        site="0.",
        world_size=1,
        family=PARAMETERS_OF_OPTIMIZERS,
        causes=("two-optimizers",),
    ),
    Fault(
        "K4",
        "weights of norms are decayed as they are called otherwise",
        decayed,
        ("decay-on-norms",),
        trains_differently,
        ranks=(0,),
        step=2,
        site="1.weight",
        world_size=1,
        family=PARAMETERS_OF_OPTIMIZERS,
    ),
)
