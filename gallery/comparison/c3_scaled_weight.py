"""C3. One weight matrix is 1.001, or 1.00001, times what it is in the reference.

Who had it: checkpoints converted twice, weights folded with a norm's gain in one run only, a rounding through another
dtype. No loss curve shows it.
Planted: the weight of one linear is multiplied before training.
Twin: the same seed twice.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from gallery.entry_context import EntryContext
from gallery.families import WEIGHTS_CODE_AND_SETTINGS_OF_TWO_RUNS
from gallery.reference_training import compared, language_model

LINEAR = "blocks.1.mlp.0"


def scaled(ctx: EntryContext, faulty: bool, *, factor: float) -> nn.Module:
    """The weight of one linear times ``factor``."""

    def change(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter(f"{LINEAR}.weight").mul_(factor if faulty else 1.0)

    return language_model(ctx, change=change)


_fault = compared(
    "C3",
    ("first-divergence", "weight-differs"),
    site=f"/fwd/{LINEAR}.linear#0:out0",
    family=WEIGHTS_CODE_AND_SETTINGS_OF_TWO_RUNS,
    causes=("weights-differ",),
)

ENTRIES = (
    _fault("", "one weight x 1.001", partial(scaled, factor=1.001)),
    _fault("small", "one weight x 1.00001", partial(scaled, factor=1.00001), variant_of="C3"),
)
