"""Tensors inside of what a module returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from trueline.capture.model.contents import Walk, is_tensor


def differentiable(output: Any) -> Iterator[Tensor]:
    """The tensors in a module's output that gradients will come back through."""
    named_tensors = (("", output),) if is_tensor(output) else Walk(objects=True).tensors("", output)
    return (x for _, x in named_tensors if x.requires_grad and x.grad_fn is not None)
