"""C4. In one layer the residual is added after the norm instead of before.

Who had it: reimplementations of a pre-norm block that return `norm(x) + f(norm(x))`, as some released models do on
purpose (`apply_residual_connection_post_layernorm` of BLOOM). Every call and every weight is the same.
Planted: in the second layer, round the MLP.
Twin: the same block written in another way, which calls the same.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from trueline.testing.beside import language_model
from trueline.testing.entry import Fault, Reference
from trueline.testing.seat import Seat
from trueline.testing.witness import trains_differently


def rewritten(seat: Seat, faulty: bool) -> nn.Module:
    """The second block has a forward of its own."""

    def change(model: Any) -> None:
        block = model.blocks[1]

        def forward(x_BLD: Tensor) -> Tensor:
            x_BLD = x_BLD + block.dropout(block._attention(block.norm_attn(x_BLD)))
            normed_BLD = block.norm_mlp(x_BLD)
            return (normed_BLD if faulty else x_BLD) + block.dropout(block.mlp(normed_BLD))

        block.forward = forward

    return language_model(seat, change=change)


ENTRIES = (
    Fault(
        "C4",
        "residual added after the norm in one layer",
        rewritten,
        ("structure-differs|first-divergence",),
        trains_differently,
        site="/fwd/blocks.1.add#1:",
        world_size=1,
        reference=Reference(language_model),
    ),
)
