"""What a forward pass is called on, by the names of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from trueline.capture.model.layout import unwrap


def named_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call of ``module`` by the names that it gives them; by their positions where it tells none."""
    try:
        return inspect.signature(unwrap(module).forward).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return {**{str(place): value for place, value in enumerate(args)}, **kwargs}
