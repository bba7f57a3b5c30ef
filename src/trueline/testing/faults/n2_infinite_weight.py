"""N2. An infinity in one weight.

Who had it: a bit flip in memory, a checkpoint that was damaged on its way, an update in which the second moment was
zero. One step later every weight is NaN on every rank, and which was first can no longer be seen.
Planted: one element of one weight becomes infinite between two steps, on one rank, on all ranks, and as the highest
exponent bit of a float32 (the value becomes about 1e38: it is the variance of what it is added to that is infinite).
Twin: the element becomes 2 on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial

import torch
from torch import nn

from trueline.testing.entry import Fault
from trueline.testing.problems import CausalLM
from trueline.testing.seat import Seat
from trueline.testing.training import adamw, batches_of, fit, wrapped
from trueline.testing.witness import nonfinite

TRIGGER = 6
WEIGHT = "blocks.1.mlp.0.weight"
BAD_RANK = 1


def weight(
    seat: Seat, faulty: bool, *, ranks: Collection[int], change: Callable[[float], float], preset: str = "mix"
) -> nn.Module:
    """Changes the element after the update of the step before the trigger."""
    problem = CausalLM()
    model = wrapped(problem.model())
    param = model.module.get_parameter(WEIGHT)

    def damage(step: int) -> None:
        if step == TRIGGER - 1 and (not faulty or seat.rank in ranks):
            with torch.no_grad():
                param[3, 5] = change(float(param[3, 5])) if faulty else 2.0

    optimizer = adamw(model)
    watch = seat.watch(model, optimizer, preset=preset)
    return fit(seat, model, optimizer, problem, batches_of(seat, problem), after_step=damage, watch=watch)


def infinity(value: float) -> float:
    """The element, damaged."""
    return math.copysign(math.inf, value)


def top_bit(value: float) -> float:
    """``value`` with the highest bit of its float32 exponent flipped, which is 0 in any magnitude below 2."""
    bits = torch.tensor(value, dtype=torch.float32).view(torch.int32) ^ (1 << 30)
    return float(bits.view(torch.float32))


BOTH = (0, 1)
FOUND = ("overflow-origin", "worker-nonfinite")
MAY = ("replica-drift",)
SITE = f"/param/{WEIGHT}#"

ENTRIES = (
    Fault(
        "N2",
        "infinity in one weight of one rank",
        partial(weight, ranks=(BAD_RANK,), change=infinity),
        FOUND,
        nonfinite,
        MAY,
        ranks=(BAD_RANK,),
        step=TRIGGER,
        site=SITE,
    ),
    Fault(
        "N2.all",
        "infinity in one weight of all ranks",
        partial(weight, ranks=BOTH, change=infinity),
        FOUND,
        nonfinite,
        ranks=BOTH,
        step=TRIGGER,
        site=SITE,
    ),
    Fault(
        "N2.modules",
        "infinity in one weight of one rank, modules recorded",
        partial(weight, ranks=(BAD_RANK,), change=infinity, preset="modules"),
        FOUND,
        nonfinite,
        MAY,
        ranks=(BAD_RANK,),
        step=TRIGGER,
        site=SITE,
    ),
    Fault(
        "N2.bit",
        "the highest exponent bit of one weight flipped on one rank",
        partial(weight, ranks=(BAD_RANK,), change=top_bit),
        FOUND,
        nonfinite,
        MAY,
        ranks=(BAD_RANK,),
        step=TRIGGER,
        site="/fwd/norm.layer_norm#0:out0",
    ),
)
