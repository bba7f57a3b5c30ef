"""D13. What is drawn for each sample is drawn alike on all ranks, which read different ones.

Who had it: trainings of diffusion and flow matching models that call `set_seed(42)` on every rank and draw noise and
times from the global stream; masked autoencoders; mixup.
Planted: times, or times and noise, from generators with one seed on all ranks.
Twin: seeds that go by the rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.laws.inputs.i2_constant_inputs import TIMES, Diffusion
from gallery.training import fit
from gallery.witness import trains_differently


def _denoising(*, alike: tuple[str, ...]) -> Callable[[EntryContext, bool], nn.Module]:
    """Training to predict noise; those of `noise` and `times` that are ``alike`` have one seed."""

    def train(ctx: EntryContext, faulty: bool) -> nn.Module:
        draws = {
            name: torch.Generator().manual_seed(seed + 100 * (ctx.rank + 1) * (not faulty or name not in alike))
            for seed, name in enumerate(("noise", "times"))
        }

        def loss_of(model: nn.Module, batch: Any) -> Tensor:
            x_BD = batch["x"]
            noise_BD = torch.randn(x_BD.shape, generator=draws["noise"])
            times_B = torch.randint(TIMES, (len(x_BD),), generator=draws["times"])
            share_B1 = times_B[:, None] / TIMES
            return functional.mse_loss(model((1 - share_B1) * x_BD + share_B1 * noise_BD, times_B), noise_BD)

        return fit(ctx, Diffusion(), loss_of=loss_of)

    return train


_fault = variants(
    "D13",
    ("draws-alike",),
    trains_differently,
    ranks=(0, 1),
    family="draws of samples",
    causes=("draws-shared",),
)

ENTRIES = (
    _fault("", "the times of a diffusion model are the same on both ranks", _denoising(alike=("times",))),
    _fault(
        "noise",
        "its times and its noise are",
        _denoising(alike=("noise", "times")),
        variant_of="D13",
        may_find=("dispersion-low",),
    ),
)
