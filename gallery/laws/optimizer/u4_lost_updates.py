"""U4. Rounding loses the updates.

Who had it: fine-tuning with parameters, states and updates in bfloat16 at the small rates that float32 takes.
Planted: parameters in bfloat16 at a rate of 1e-5; parameters in float32 at a rate that was multiplied with itself.
Twin: parameters in float32 at the same rate; the rate that was meant.
"""

from __future__ import annotations

from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import PRECISION
from gallery.problems import CausalLM
from gallery.training import adamw, fit
from gallery.witness import trains_differently


def lost(ctx: EntryContext, faulty: bool) -> nn.Module:
    """AdamW at a small rate."""
    problem = CausalLM()
    model = problem.model()
    model = model.bfloat16() if faulty else model
    return fit(ctx, problem, model, optimizer=adamw(model, lr=1e-5))


def tiny(ctx: EntryContext, faulty: bool) -> nn.Module:
    """AdamW at the product of three rates, where the function of its schedule returns the rate and no factor."""
    model = CausalLM().model()
    return fit(ctx, CausalLM(), model, optimizer=adamw(model, lr=1e-9 if faulty else 1e-3))


_fault = variants(
    "U4",
    ("update-lost",),
    trains_differently,
    ranks=(0,),
    world_size=1,
    family=PRECISION,
    causes=("updates-lost-in-rounding",),
)

ENTRIES = (
    _fault("", "updates are lost in bfloat16", lost),
    _fault("tiny", "updates at a tiny rate are lost in float32", tiny, causes=("rate-too-small",)),
)
