"""Y4. A new head is frozen with the rest.

Who had it: adapters on a classifier without `modules_to_save`; loops that freeze all but what has a name.
Planted: the last layer is frozen as it was drawn.
Twin: the first layer is.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from gallery.entry import Fault
from gallery.entry_context import EntryContext
from gallery.families import INITIAL_VALUES
from gallery.problems import Regression
from gallery.training import fit, sgd
from gallery.witness import trains_differently


def frozen_head(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One of the end layers is frozen."""
    model: Any = Regression().model()
    model.append(nn.Sequential(nn.Linear(4, 32), nn.ReLU())).append(nn.Linear(32, 4))
    model[6 if faulty else 0].requires_grad_(False)
    return fit(ctx, Regression(), model, optimizer=sgd(model), steps=6)


ENTRIES = (
    Fault(
        "Y4",
        "the last layer is frozen as it was drawn",
        frozen_head,
        ("frozen-untrained",),
        trains_differently,
        ranks=(0,),
        site="6",
        world_size=1,
        family=INITIAL_VALUES,
    ),
)
