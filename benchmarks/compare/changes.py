"""Changes of a small language model with RMSNorm that make it wrong."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

WIDTH = 64
UP = "blocks.1.mlp.0"


def scaled(factor: float) -> Callable[[nn.Module], object]:
    """Multiply one weight."""
    return lambda model: model.get_parameter(f"{UP}.weight").data.mul_(factor)


def infinite(model: nn.Module) -> None:
    """One +inf in a weight."""
    model.get_parameter(f"{UP}.weight").data[3, 5] = float("inf")


def tanh(model: nn.Module) -> None:
    """The tanh GELU by argument."""
    model.get_submodule("blocks.1.mlp.1").approximate = "tanh"


def wide_eps(model: nn.Module) -> None:
    """An RMSNorm with an eps of 1e-2."""
    model.get_submodule("blocks.1.norm_attn").eps = 1e-2


def not_causal(model: nn.Module) -> None:
    """An attention that also sees what comes later."""
    block = model.get_submodule("blocks.1")

    def attention(x_BLD: Tensor) -> Tensor:
        qkv_BHLK = (part.unflatten(-1, (block.num_heads, -1)).transpose(1, 2) for part in block.qkv(x_BLD).chunk(3, -1))
        mixed_BHLK = functional.scaled_dot_product_attention(*qkv_BHLK, is_causal=False)
        return block.out(mixed_BHLK.transpose(1, 2).flatten(-2))

    block._attention = attention
