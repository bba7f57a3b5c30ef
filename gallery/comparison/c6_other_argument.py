"""C6. One layer is called with another argument: the eps of its norm, or attention that is not causal.

Who had it: RMSNorm with the eps of another model family (1e-5 and 1e-6 in configurations of the same model), attention
masks dropped where a kernel takes `is_causal` instead.
Planted: in the second layer an RMSNorm has eps 1e-2, or attention sees what comes after.
Twin: the same settings, given in another way.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import Reference
from gallery.entry_context import EntryContext
from gallery.families import KERNELS_AND_ARGUMENTS_OF_TWO_RUNS
from gallery.reference_training import compared, language_model

WIDTH = 32
EPS = 1e-5


def with_rms_norm(model: Any, *, eps: float = EPS) -> None:
    """RMSNorm in place of LayerNorm, the second block's first one with ``eps``."""
    for block in model.blocks:
        block.norm_attn, block.norm_mlp = nn.RMSNorm(WIDTH, eps=EPS), nn.RMSNorm(WIDTH, eps=EPS)
    model.norm = nn.RMSNorm(WIDTH, eps=EPS)
    model.blocks[1].norm_attn.eps = eps


def other_eps(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Another eps in one norm."""
    return language_model(ctx, change=lambda model: with_rms_norm(model, eps=1e-2 if faulty else EPS))


def not_causal(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Attention of the second block by another function, causal or not."""

    def change(model: Any) -> None:
        block = model.blocks[1]

        def attention(x_BLD: Tensor) -> Tensor:
            parts = block.qkv(x_BLD).chunk(3, -1)
            qkv_BHLK = (part.unflatten(-1, (block.num_heads, -1)).transpose(1, 2) for part in parts)
            mixed_BHLK = functional.scaled_dot_product_attention(*qkv_BHLK, is_causal=not faulty)
            return block.out(mixed_BHLK.transpose(1, 2).flatten(-2))

        block._attention = attention

    return language_model(ctx, change=change)


_fault = compared("C6", ("first-divergence",), family=KERNELS_AND_ARGUMENTS_OF_TWO_RUNS, causes=("argument-differs",))

ENTRIES = (
    _fault(
        "",
        "eps 1e-2 in one RMSNorm",
        other_eps,
        site="/fwd/blocks.1.norm_attn.rms_norm#0:out0",
        reference=Reference(lambda ctx: language_model(ctx, change=with_rms_norm)),
    ),
    _fault(
        "causal",
        "attention of one layer not causal",
        not_causal,
        site="/fwd/blocks.1.scaled_dot_product_attention#0:out0",
    ),
)
