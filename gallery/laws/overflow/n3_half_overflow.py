"""N3. One linear overflows in float16.

Who had it: models trained in bfloat16 and then run in float16; activations with outlier channels that grow during
training (BLOOM, OPT). Weights and inputs fit, their product does not.
Planted: under float16 autocast the weight of one linear grows, at first by 2^9 and then by two every step, until its
output exceeds 65,504. The steps before it are within a factor of two of that.
Twin: after the first growth it doubles twice and stays.
"""

from __future__ import annotations

import torch
from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import PRECISION
from gallery.problems import CausalLM
from gallery.training import fit, under_autocast, wrapped
from gallery.witness import nonfinite

STEPS = 14
TRIGGER = 6
LINEAR = "blocks.1.mlp.0"


def half_overflow(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Outputs of about 2 begin to grow; within five doublings after the first growth they do not fit."""
    problem = CausalLM()
    model = wrapped(problem.model())
    weight = model.module.get_parameter(f"{LINEAR}.weight")

    def grow(step: int) -> None:
        with torch.no_grad():
            if step == 1:
                weight.mul_(2.0**9)
            elif step > 1 and (faulty or step < 4):
                weight.mul_(2.0)

    return fit(
        ctx,
        problem,
        model,
        lr=1e-4,
        steps=STEPS,
        loss_of=under_autocast(problem, torch.float16),
        after_step=grow,
        plan={"preset": "mix"},
    )


FOUND = ("overflow-origin", "range-saturation", "worker-nonfinite")

_fault = variants(
    "N3",
    FOUND,
    nonfinite,
    step=TRIGGER,
    within=2,
    site=f"/fwd/{LINEAR}.linear#0:out0",
    family=PRECISION,
    causes=("float16-overflow",),
)

ENTRIES = (_fault("", "float16 overflow inside one linear", half_overflow),)
