"""W3. Attention sees tokens that are to be predicted.

Who had it: decoders whose causal mask is lost when an attention kernel is exchanged, or made one diagonal too wide.
Planted: no mask; a mask that is off by one.
Twin: the causal mask.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import MASKS_OF_ATTENTION
from gallery.problems import CausalLM
from gallery.training import fit, wrapped
from gallery.witness import trains_differently

STEP = 3


def masked(ctx: EntryContext, faulty: bool, *, ahead: int) -> nn.Module:
    """A decoder whose attention sees ``ahead`` later positions."""
    problem = CausalLM(ahead=ahead if faulty else 0)
    model: Any = problem.model() if ctx.world_size == 1 else wrapped(problem.model())
    return fit(ctx, problem, model, plan={"influence": STEP})


_fault = variants(
    "W3",
    ("influence-leak",),
    trains_differently,
    step=STEP,
    world_size=1,
    ranks=(0,),
    family=MASKS_OF_ATTENTION,
    causes=("mask-shows-what-is-predicted",),
)

ENTRIES = (
    _fault("", "attention has no causal mask", partial(masked, ahead=CausalLM.length)),
    _fault(
        "off-by-one",
        "the causal mask is one diagonal too wide",
        partial(masked, ahead=1),
        world_size=2,
        ranks=(0, 1),
    ),
)
