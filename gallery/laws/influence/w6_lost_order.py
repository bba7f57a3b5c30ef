"""W6. Positions do not reach attention.

Who had it: decoders whose rotary embedding is written for [B, H, T, D] and called on [B, T, H, D], so that it goes
along heads; models that compute an embedding of positions and add it to nothing.
Planted: both.
Twin: positions along places; an embedding that is added.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.laws.influence.w3_wrong_mask import STEP
from gallery.problems import CausalLM
from gallery.training import fit, wrapped
from gallery.witness import trains_differently

HEADS = 2


class Ordered(nn.Module):
    """One causal attention over embeddings, with rotary or learned positions.

    Letters: B rows, L positions, D model width, H heads, K width of a head.
    """

    def __init__(self, fault: str, *, learned: bool, width: int = 32) -> None:
        super().__init__()
        self.fault = fault
        self.embed = nn.Embedding(CausalLM.vocab_size, width)
        self.position = nn.Embedding(CausalLM.length, width) if learned else None
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.head = nn.Linear(width, CausalLM.vocab_size)
        half = width // HEADS // 2
        self.register_buffer("inv_freq", 100.0 ** -(torch.arange(half) / half), persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits [B, L, V]."""
        x_BLD = self.embed(input_ids)
        if self.position is not None:
            placed_BLD = x_BLD + self.position(torch.arange(input_ids.shape[1]))
            x_BLD = x_BLD if self.fault else placed_BLD
        q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in self.qkv(x_BLD).chunk(3, -1))
        if self.position is None:
            along = -2 if self.fault else 1
            q, k = self._rotated(q, along), self._rotated(k, along)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        mixed_BLD = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        return self.head(x_BLD + self.out(mixed_BLD))

    def _rotated(self, x_BLHK: Tensor, along: int) -> Tensor:
        at = torch.arange(x_BLHK.shape[along], dtype=torch.float32)
        angle = (at[:, None] * self.inv_freq.float())[:, None] if along == 1 else at[:, None] * self.inv_freq.float()
        one, two = x_BLHK.chunk(2, -1)
        cos, sin = angle.cos().to(x_BLHK.dtype), angle.sin().to(x_BLHK.dtype)
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)


def ordered(learned: bool) -> Any:
    """Training of a decoder whose positions are lost where it is faulty."""

    def train(ctx: EntryContext, faulty: bool) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: Any = Ordered("lost" if faulty else "", learned=learned)
        return fit(ctx, CausalLM(), model if ctx.world_size == 1 else wrapped(model), plan={"influence": STEP})

    return train


_fault = variants(
    "W6",
    ("order-ignored",),
    trains_differently,
    step=STEP,
    world_size=1,
    ranks=(0,),
    family="order that is lost",
    causes=("positions-lost",),
)

ENTRIES = (
    _fault("", "rotary positions go along heads", ordered(learned=False)),
    _fault("not-added", "an embedding of positions is not added", ordered(learned=True), may_find=("param-frozen",)),
)
