"""P3. A recurrent model begins each batch with the state that the batch before left, though samples are shuffled.

Who had it: recurrent models made for texts in order, with `self.hidden` that nobody sets back.
Planted: the state stays in an attribute of the model.
Twin: each batch begins at zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gallery.entry import Fault
from gallery.entry_context import EntryContext
from gallery.families import SAMPLES_THAT_ARE_MIXED
from gallery.problems import Vision
from gallery.training import fit, sgd
from gallery.witness import trains_differently


class _Rows(nn.Module):
    """Reads an image [B, 1, 8, 8] row by row."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.read, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, Vision.num_classes)
        self.keeps = keeps
        self.hidden: Tensor | None = None

    def forward(self, image_B: Tensor) -> Tensor:
        out_BTD, hidden = self.read(image_B.flatten(0, 1), self.hidden)
        if self.keeps:
            self.hidden = hidden.detach()
        return self.head(out_BTD[:, -1])


def carried_state(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The state of the last batch, or zeros."""
    torch.manual_seed(0)
    model = _Rows(keeps=faulty)
    return fit(ctx, Vision(), model, optimizer=sgd(model), steps=8)


ENTRIES = (
    Fault(
        "P3",
        "a hidden state is carried from batch to batch",
        carried_state,
        ("state-carried",),
        trains_differently,
        ranks=(0,),
        step=4,
        world_size=1,
        family=SAMPLES_THAT_ARE_MIXED,
        causes=("state-not-set-back",),
    ),
)
