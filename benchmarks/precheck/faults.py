"""Kernels that are wrong while operations are called again: by a dispatch mode, as an override on a device would be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Change = Callable[..., Tensor]


class WrongKernel(TorchDispatchMode):
    """The kernel ``name`` returns ``change(result, *args)``, but for float64."""

    def __init__(self, name: str, change: Change) -> None:
        super().__init__()
        self._name, self._change = name, change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What the kernel returns, changed where it is its turn."""
        del types
        made = func(*args, **(kwargs or {}))
        wrong = func.overloadpacket.__name__ == self._name
        first = made[0] if isinstance(made, tuple) else made
        if not wrong or not isinstance(first, Tensor) or first.dtype == torch.float64:
            return made
        changed = self._change(first, *args)
        return (changed, *made[1:]) if isinstance(made, tuple) else changed


def narrow_sum(made: Tensor, *args: Any) -> Tensor:
    """A product whose partial sums are bfloat16."""
    x, w = [each for each in args if isinstance(each, Tensor)][-2:]
    total = torch.zeros(made.shape, dtype=torch.bfloat16)
    for k in range(x.shape[-1]):
        total += x[:, k : k + 1].bfloat16() * w[k].bfloat16()
    return total.to(made.dtype)


def last_row(made: Tensor, *_: Any) -> Tensor:
    """The last row is 0."""
    made = made.clone()
    made.reshape(-1, made.shape[-1])[-1] = 0
    return made


def block_of_32(made: Tensor, *_: Any) -> Tensor:
    """32 elements in a row have their neighbours' values."""
    flat = made.clone().reshape(-1)
    if len(flat) >= 128:
        flat[64:96] = flat[32:64].clone()
    return flat.reshape(made.shape)


def one_percent(made: Tensor, *_: Any) -> Tensor:
    """Multiplied by 1.01."""
    return made * 1.01


def biased(made: Tensor, x: Tensor, *_: Any) -> Tensor:
    """A normalisation with its epsilon outside of the root: about 1e-3 less."""
    return made * (1 - 1e-3)


FAULTS: Mapping[str, tuple[str, str, Change, tuple[str, ...]]] = {
    "sums in bfloat16": ("BERT", "addmm", narrow_sum, ("float32",)),
    "a lost last row": ("BERT", "addmm", last_row, ("float32", "bfloat16", "autocast")),
    "a block of 32 from its neighbours": ("BERT", "addmm", block_of_32, ("float32", "bfloat16", "autocast")),
    "GELU 1 % too large": ("BERT", "gelu", one_percent, ("float32", "bfloat16", "autocast")),
    "normalisation 0.1 % too small": ("BERT", "native_layer_norm", biased, ("float32", "bfloat16", "autocast")),
    "convolution 1 % too large": ("UNet", "convolution", one_percent, ("float32", "bfloat16", "autocast")),
    "a gradient of GELU 1 % too large": ("BERT", "gelu_backward", one_percent, ("float32", "bfloat16", "autocast")),
}
"""By what is wrong: the model, the kernel, the change, and the precisions."""
