"""A small language model with RMSNorm, the eight faults that make it wrong, and another number of threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from gallery.changed_kernel import ChangedKernel
from gallery.problems import CausalLM
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 64
UP = "blocks.1.mlp.0"
CALLS = 2
"""Attentions and GELUs of a forward pass: the second of each is the one that is wrong."""
SCALE = 1.25 / (WIDTH / 2) ** 0.5
"""Of attention, 1.25 times what it should be."""


@dataclass(frozen=True)
class Fault:
    """``begin`` changes the model before the step from which on it is wrong, ``inside`` is a context for the whole run
    that is given that step. ``calls`` are the names of the call that is wrong first, of the op or of the module around
    it alone, and ``theirs`` those that msProbe has. ``hidden``: below what a compiler sees; ``small``: in bfloat16
    there is nothing wrong, for it is less than half of a last place.
    """

    name: str
    calls: tuple[str, ...]
    theirs: tuple[str, ...]
    begin: Callable[[nn.Module], object] = lambda model: None
    inside: Callable[[int], AbstractContextManager[Any]] = lambda step: contextlib.nullcontext()
    hidden: bool = False
    small: bool = False


def language_model(seed: int = 0) -> nn.Module:
    """A causal decoder of two layers with RMSNorm in place of LayerNorm, but for the last."""
    model = CausalLM(width=WIDTH).model(seed=seed)
    for block in model.blocks:
        block.norm_attn, block.norm_mlp = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
    return model


@contextlib.contextmanager
def two_threads() -> Iterator[None]:
    """Two threads, then one."""
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(1)


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


def hidden_tanh(step: int) -> ChangedKernel:
    """The tanh GELU within the kernel."""
    return ChangedKernel("aten.gelu", first=CALLS * step, approximate="tanh")


def hidden_scale(step: int) -> ChangedKernel:
    """Attention with another scale within the kernel."""
    return ChangedKernel("flash_attention", first=CALLS * step, scale=SCALE)


_ATTENTION = (("blocks.1.scaled_dot_product_attention#0",), ("Functional.scaled_dot_product_attention.1.forward",))
_GELU = (
    ("blocks.1.mlp.1.gelu#0", "blocks.1.mlp.1#0"),
    ("Functional.gelu.1.forward", "Module.blocks.1.mlp.1.GELU.forward.0"),
)
_NORM = (
    ("blocks.1.norm_attn.rms_norm#0", "blocks.1.norm_attn#0"),
    ("Functional.rms_norm.2.forward", "Torch.rms_norm.2.forward", "Module.blocks.1.norm_attn.RMSNorm.forward.0"),
)
_LINEAR = (
    (f"{UP}.linear#0", f"{UP}#0", f"{UP}.weight"),
    ("Functional.linear.6.forward", f"Module.{UP}.Linear.forward.0"),
)

FAULTS = (
    Fault("tanh GELU by argument", *_GELU, begin=tanh),
    Fault("tanh GELU hidden in the kernel", *_GELU, inside=hidden_tanh, hidden=True),
    Fault("attention scale x 1.25 hidden", *_ATTENTION, inside=hidden_scale, hidden=True),
    Fault("one weight x 1.001", *_LINEAR, begin=scaled(1.001), small=True),
    Fault("one weight x 1.00001", *_LINEAR, begin=scaled(1.00001), small=True),
    Fault("attention not causal", *_ATTENTION, begin=not_causal),
    Fault("eps of an RMSNorm 1e-2", *_NORM, begin=wide_eps),
    Fault("+inf in a weight", *_LINEAR, begin=infinite),
)
