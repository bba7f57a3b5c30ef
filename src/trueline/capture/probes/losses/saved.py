"""What the operations of a graph keep for backward, read as it is."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trueline.capture.model.graph import in_memory, is_hooked
from trueline.capture.model.layout import local


def saved_tensor(node: Any, name: str) -> Tensor | None:
    """What ``node`` keeps under ``name``; None where it keeps no such tensor, where hooks keep it, where it was changed
    in place, or where its memory was freed.
    """
    raw = getattr(node, f"_raw_saved_{name}", None)
    if raw is None or is_hooked(raw):
        return None
    try:
        tensor = getattr(node, f"_saved_{name}")
    except RuntimeError:  # changed in place, or freed: backward will raise, too
        return None
    if not isinstance(tensor, Tensor):
        return None
    tensor = local(tensor.detach())
    return tensor if in_memory(tensor) else None
