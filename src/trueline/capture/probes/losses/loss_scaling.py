"""What is known of the inside of gradient scalers: torch's, and, as far as its scale, DeepSpeed's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def is_on(scaler: Any) -> bool:
    """True if ``scaler`` multiplies at all: one of torch may be made with ``enabled=False``."""
    return bool(getattr(scaler, "_enabled", True))


def scale_of(scaler: Any) -> Tensor | float:
    """What ``scaler`` multiplies losses by, 1 without one that is on, NaN if unknown: that of torch holds it in
    ``_scale``, DeepSpeed's in ``loss_scale``.
    """
    if scaler is None or not is_on(scaler):
        return 1.0
    scale = getattr(scaler, "_scale", None)
    return scale if isinstance(scale, Tensor) else float(getattr(scaler, "loss_scale", math.nan))


def unscaled(scaler: Any) -> frozenset[int]:
    """The optimizers, by ``id``, whose gradients ``scaler`` has divided by its scale since their last update."""
    states: Mapping[int, Mapping[str, Any]] = getattr(scaler, "_per_optimizer_states", None) or {}
    return frozenset(key for key, state in states.items() if getattr(state.get("stage"), "name", "") == "UNSCALED")


def inside(optimizer: Any) -> bool:
    """True if ``optimizer``, a fused one that is about to update, divides by the scale itself."""
    return getattr(optimizer, "grad_scale", None) is not None


def unscales(scaler: Any, optimizer: Any) -> bool:
    """True if ``scaler`` has divided the gradients of ``optimizer``, which is about to update, or lets it do so."""
    states = getattr(scaler, "_per_optimizer_states", None) or {}
    return id(optimizer) in states and (inside(optimizer) or id(optimizer) in unscaled(scaler))
