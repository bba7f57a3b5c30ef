"""N1. A mask built for padded rows is used on packed tokens: gradients grow from layer to layer until they overflow.

Who had it: users who switched from padding to packing (or to variable-length attention kernels) and kept one of the
two descriptions of where a sequence ends. Every layer then sums over more tokens than it divides by.
Planted: attention by averaging in float16. How many tokens a mean is over is taken from the packed lengths, which
tokens from rows of the padded length. The two agree until a batch has shorter sequences; then every layer multiplies
by four, and backward overflows some layers below the loss, whose value is finite.
Twin: both from the packed lengths.

Letters: T tokens of all sequences in a row, P padded length, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import MASKS_OF_ATTENTION
from gallery.training import STEPS, fit, wrapped
from gallery.witness import nonfinite

TRIGGER = 6
NUM_TOKENS, PADDED, SHORT, WIDTH = 64, 16, 4, 8
NUM_LAYERS = 10


class Averages(nn.Module):
    """Layers that project every token and average it with those of its sequence."""

    def __init__(self, *, padded: bool) -> None:
        super().__init__()
        self.padded = padded
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS))
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight)  # type: ignore[arg-type]

    def forward(self, x_TD: Tensor, length: int) -> Tensor:
        """[T, D] after all layers; ``length`` is that of every sequence."""
        row_T = torch.arange(NUM_TOKENS) // (PADDED if self.padded else length)
        mean_TT = (row_T[:, None] == row_T).to(x_TD.dtype) / length
        for layer in self.layers:
            x_TD = mean_TT @ layer(x_TD)
        return x_TD


class Packed:
    """Packed sequences, which fill padded rows up to the step at which they are short; small random targets."""

    def batches(self, ctx: EntryContext) -> Iterator[Any]:
        """One batch a step, other ones on each rank."""
        draw = torch.Generator().manual_seed(100 + ctx.rank)
        for step in range(STEPS):
            x_TD = 4e-4 * torch.randn(NUM_TOKENS, WIDTH, generator=draw)
            y_TD = 1e-2 * torch.randn(NUM_TOKENS, WIDTH, generator=draw)
            yield {"x": x_TD.half(), "y": y_TD, "length": SHORT if step == TRIGGER else PADDED}

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean squared error, as a mean over tokens of sums."""
        return functional.mse_loss(model(batch["x"], batch["length"]).float(), batch["y"], reduction="sum") / NUM_TOKENS

    def tokens(self, batch: Any) -> float:
        """Tokens, as every one counts the same."""
        return float(len(batch["x"]))


def padded_mask(ctx: EntryContext, faulty: bool, *, preset: str) -> nn.Module:
    """Trains in float16 and records every step; at a rate of 0, as float16 loses what such gradients move."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = wrapped(Averages(padded=faulty).half())
    problem = Packed()
    return fit(ctx, problem, model, lr=0.0, batches=problem.batches(ctx), plan={"preset": preset})  # type: ignore[arg-type]


_fault = variants(
    "N1",
    ("overflow-origin", "grad-explosion", "worker-nonfinite"),
    nonfinite,
    step=TRIGGER,
    family=MASKS_OF_ATTENTION,
    causes=("gradients-grow-with-depth",),
)

ENTRIES = (
    _fault(
        "",
        "mask for padded rows on packed tokens, float16, every call recorded",
        partial(padded_mask, preset="mix"),
        site="/bwd/Averages.matmul#",
    ),
    _fault(
        "modules",
        "the same, modules recorded",
        partial(padded_mask, preset="modules"),
        site="/bwd/layers.",
        variant_of="N1",
    ),
)
