"""What is inside of whatever a module returns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

MAX_DEPTH, MAX_LENGTH = 4, 1000
"""Containers inside each other in which a module's output is searched for tensors, and elements of each."""


def differentiable(output: Any, depth: int = 0) -> Iterator[Tensor]:
    """The tensors in a module's output that gradients will come back through."""
    if isinstance(output, Tensor):
        if output.requires_grad and output.grad_fn is not None:
            yield output
        return
    if depth == MAX_DEPTH or output is None or isinstance(output, (str, bytes, int, float)):
        return
    if isinstance(output, Mapping):
        inside: Any = output.values()
    elif isinstance(output, (list, tuple)):
        inside = output
    else:
        inside = getattr(output, "__dict__", {}).values()
    for value in itertools.islice(inside, MAX_LENGTH):
        yield from differentiable(value, depth + 1)


def field_of(output: Any, name: str) -> Any:
    """``output.name`` or ``output["name"]`` of what a model returned; None without."""
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
