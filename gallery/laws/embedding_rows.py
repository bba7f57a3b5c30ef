"""Y6. The row for padding is drawn anew. Y7. New tokens are frozen as they were drawn.

Who had it: microsoft/Graphormer#41 (all embeddings are initialised again), Visual-LLaMA#2 (tokens are added to an
embedding that is frozen).
Planted: both.
Twin: the row is set to zero again; the embedding is trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gallery.entry import Fault
from gallery.entry_context import EntryContext
from gallery.families import INITIAL_VALUES
from gallery.problems import CausalLM
from gallery.training import fit
from gallery.witness import trains_differently

STEPS = 4


class Resized(nn.Module):
    """``model``, made for ``vocab_size`` tokens, which fewer than its embedding has rows."""

    def __init__(self, model: Any, vocab_size: int) -> None:
        super().__init__()
        self.model, self.vocab_size = model, vocab_size

    def forward(self, ids: Tensor) -> Tensor:
        """As the model."""
        return self.model(ids)


def padding(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The first row is one for padding."""
    model: Any = CausalLM().model()
    model.embed.padding_idx = 0
    if not faulty:
        with torch.no_grad():
            model.embed.weight[0].zero_()
    return fit(ctx, CausalLM(), model, steps=STEPS)


def new_tokens(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The last eight tokens are new."""
    model: Any = CausalLM().model()
    model.embed.weight.requires_grad_(not faulty)
    return fit(ctx, CausalLM(), Resized(model, model.embed.num_embeddings - 8), steps=STEPS)


ENTRIES = (
    Fault(
        "Y6",
        "the row for padding is drawn anew",
        padding,
        ("embedding-rows",),
        trains_differently,
        ranks=(0,),
        site="embed",
        world_size=1,
        family=INITIAL_VALUES,
    ),
    Fault(
        "Y7",
        "new tokens are frozen as they were drawn",
        new_tokens,
        ("embedding-rows",),
        trains_differently,
        ranks=(0,),
        site="embed",
        world_size=1,
        family=INITIAL_VALUES,
    ),
)
