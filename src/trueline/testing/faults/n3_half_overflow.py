"""N3. One linear overflows in float16.

Who had it: models trained in bfloat16 and then run in float16; activations with outlier channels that grow during
training (BLOOM, OPT). Weights and inputs fit, their product does not.
Planted: under float16 autocast the weight of one linear grows by four every step, until its output exceeds 65,504.
Twin: it grows by four for two steps only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trueline.testing.entry import Fault
from trueline.testing.problems import CausalLM
from trueline.testing.seat import Seat
from trueline.testing.training import STEPS, adamw, batches_of, fit, wrapped
from trueline.testing.witness import nonfinite

FIRST_GROWTH = 2
TRIGGER = 9
LINEAR = "blocks.1.mlp.0"


def half_overflow(seat: Seat, faulty: bool) -> nn.Module:
    """Outputs of about 1 times 4^8 do not fit."""
    problem = CausalLM()
    model = wrapped(problem.model())
    weight = model.module.get_parameter(f"{LINEAR}.weight")

    def grow(step: int) -> None:
        if FIRST_GROWTH <= step < (STEPS if faulty else FIRST_GROWTH + 2):
            with torch.no_grad():
                weight.mul_(4.0)

    def loss_of(called: nn.Module, batch: object) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return problem.loss(called, batch)

    optimizer = adamw(model, lr=1e-4)
    watch = seat.watch(model, optimizer, preset="mix")
    return fit(
        seat, model, optimizer, problem, batches_of(seat, problem), loss_of=loss_of, after_step=grow, watch=watch
    )


ENTRIES = (
    Fault(
        "N3",
        "float16 overflow inside one linear",
        half_overflow,
        ("overflow-origin", "worker-nonfinite"),
        nonfinite,
        step=TRIGGER,
        within=2,
        site=f"/fwd/{LINEAR}.linear#0:out0",
    ),
)
