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
from typing import Any

import torch
from torch import nn

from gallery.entry import Fault
from gallery.entry_context import EntryContext
from gallery.families import CORRUPTED_MEMORY
from gallery.problems import CausalLM
from gallery.training import fit, wrapped
from gallery.witness import nonfinite

TRIGGER = 6
WEIGHT = "blocks.1.mlp.0.weight"
BAD_RANK = 1


def weight(
    ctx: EntryContext, faulty: bool, *, ranks: Collection[int], change: Callable[[float], float], preset: str = "mix"
) -> nn.Module:
    """Changes the element after the update of the step before the trigger."""
    problem = CausalLM()
    model = wrapped(problem.model())
    param = model.module.get_parameter(WEIGHT)

    def damage(step: int) -> None:
        if step == TRIGGER - 1 and (not faulty or ctx.rank in ranks):
            with torch.no_grad():
                param[3, 5] = change(float(param[3, 5])) if faulty else 2.0

    return fit(ctx, problem, model, after_step=damage, plan={"preset": preset})


def infinity(value: float) -> float:
    """The element, damaged."""
    return math.copysign(math.inf, value)


def top_bit(value: float) -> float:
    """``value`` with the highest bit of its float32 exponent flipped, which is 0 in any magnitude below 2."""
    bits = torch.tensor(value, dtype=torch.float32).view(torch.int32) ^ (1 << 30)
    return float(bits.view(torch.float32))


SITE = f"/param/{WEIGHT}#"


def _entry(
    variant: str, name: str, ranks: tuple[int, ...], *, site: str = SITE, variant_of: str = "N2", **planted: Any
) -> Fault:
    """Damage on ``ranks``; where only some are damaged the replicas come apart too."""
    return Fault(
        f"N2{variant}",
        name,
        partial(weight, ranks=ranks, **{"change": infinity, **planted}),
        ("overflow-origin", "worker-nonfinite"),
        nonfinite,
        ("replica-drift",) if ranks == (BAD_RANK,) else (),
        ranks=ranks,
        step=TRIGGER,
        site=site,
        family=CORRUPTED_MEMORY,
        causes=("memory-corrupted", "weight-not-finite"),
        variant_of=variant_of,
    )


ENTRIES = (
    _entry("", "infinity in one weight of one rank", (BAD_RANK,)),
    _entry(".all", "infinity in one weight of all ranks", (0, 1)),
    _entry(".modules", "infinity in one weight of one rank, modules recorded", (BAD_RANK,), preset="modules"),
    _entry(
        ".bit",
        "the highest exponent bit of one weight flipped on one rank",
        (BAD_RANK,),
        change=top_bit,
        site="/fwd/norm.layer_norm#0:out0",
        variant_of="",
    ),
)
