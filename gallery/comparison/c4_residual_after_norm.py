"""C4. In one layer the residual is added after the norm instead of before.

Who had it: reimplementations of a pre-norm block that return `norm(x) + f(norm(x))`, as some released models do on
purpose (`apply_residual_connection_post_layernorm` of BLOOM). Every call and every weight is the same.
Planted: in the second layer, round the MLP.
Twin: the same block written in another way, which calls the same.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gallery.entry_context import EntryContext
from gallery.families import WEIGHTS_CODE_AND_SETTINGS_OF_TWO_RUNS
from gallery.reference_training import compared, language_model


def rewritten(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The second block has a forward of its own."""

    def change(model: Any) -> None:
        block = model.blocks[1]

        def forward(x_BLD: Tensor) -> Tensor:
            x_BLD = x_BLD + block.dropout(block._attention(block.norm_attn(x_BLD)))
            normed_BLD = block.norm_mlp(x_BLD)
            return (normed_BLD if faulty else x_BLD) + block.dropout(block.mlp(normed_BLD))

        block.forward = forward

    return language_model(ctx, change=change)


_fault = compared(
    "C4",
    ("structure-differs|first-divergence",),
    site="/fwd/blocks.1.add#1:",
    family=WEIGHTS_CODE_AND_SETTINGS_OF_TWO_RUNS,
    causes=("code-differs",),
)

ENTRIES = (_fault("", "residual added after the norm in one layer", rewritten),)
