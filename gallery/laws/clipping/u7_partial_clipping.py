"""U7. Clipping leaves out gradients that it should clip.

Who had it: scripts that keep ``model.parameters()`` in a variable, which the first use empties (torch warns of it since
2.6); clipping before the backward pass.
Planted: a generator that is used at every step; a function that leaves out the last parameter from step 6 on.
Twin: a list; the function of torch.
"""

from __future__ import annotations

import warnings
from typing import Any
from unittest.mock import patch

from torch import nn
from torch.nn.utils import clip_grad

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import CLIPPING
from gallery.problems import Regression
from gallery.training import fit
from gallery.witness import trains_differently

MAX_NORM, TRIGGER = 0.1, 6


def used_up(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One generator for all steps."""
    model = Regression().model()
    params: Any = model.parameters() if faulty else list(model.parameters())

    def clip(step: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nn.utils.clip_grad_norm_(params, MAX_NORM)

    return fit(ctx, Regression(), model, after_backward=clip)


def without_last(ctx: EntryContext, faulty: bool) -> nn.Module:
    """What clips by a norm leaves out the last of the parameters."""
    model = Regression().model()
    plain: Any = clip_grad._clip_grads_with_norm_
    calls = iter(range(1_000))

    def clips(params: Any, *args: Any) -> None:
        plain(params[:-1] if faulty and next(calls) >= TRIGGER else params, *args)

    with patch.object(clip_grad, "_clip_grads_with_norm_", clips):
        return fit(
            ctx,
            Regression(),
            model,
            after_backward=lambda step: nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM),
        )


_fault = variants(
    "U7", ("clip-differs",), trains_differently, ranks=(0,), world_size=1, family=CLIPPING, causes=("clipped-nothing",)
)

ENTRIES = (
    _fault("", "a generator of parameters is used up by the first clipping", used_up, step=1),
    _fault(
        "part", "clipping leaves out a parameter", without_last, step=TRIGGER, site="4.bias", causes=("clipping-wrong",)
    ),
)
