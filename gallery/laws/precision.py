"""P4. The step is within autocast, and the model computes in float32.

Who had it: a compiler whose functions run with autocast switched off, since a version of it; wrappers that enter
`autocast(enabled=False)`.
Planted: the forward pass of the model, or of most of it, is within autocast that is switched off.
Twin: it minds the autocast that it is called in.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import PRECISION
from gallery.problems import CausalLM
from gallery.training import fit, under_autocast, wrapped
from gallery.witness import trains_differently


def switched_off(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The whole model runs with autocast off."""
    model: Any = CausalLM().model()
    _run_without_autocast(model, faulty)
    return fit(ctx, CausalLM(), wrapped(model), loss_of=under_autocast(CausalLM(), torch.bfloat16), steps=10)


def off_in_blocks(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The blocks of a decoder do; its head does not."""
    model: Any = CausalLM().model()
    for block in model.blocks:
        _run_without_autocast(block, faulty)
    return fit(ctx, CausalLM(), model, loss_of=under_autocast(CausalLM(), torch.bfloat16), steps=10)


def _run_without_autocast(module: Any, faulty: bool) -> None:
    forward = module.forward

    @functools.wraps(forward)
    def outside(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=not faulty):
            return forward(*args, **kwargs)

    module.forward = outside


_fault = variants(
    "P4",
    ("autocast-not-in-force",),
    trains_differently,
    step=2,
    family=PRECISION,
    causes=("autocast-is-off-inside",),
)

ENTRIES = (
    _fault(
        "", "a model runs with autocast off within autocast", switched_off, ranks=(0, 1), site="blocks.0.out.weight"
    ),
    _fault(
        "blocks",
        "most of a model runs with autocast off within autocast",
        off_in_blocks,
        ranks=(0,),
        world_size=1,
        causes=(),
    ),
)
