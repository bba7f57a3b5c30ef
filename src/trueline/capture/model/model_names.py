"""Names that the training script has for its models."""

from __future__ import annotations

import re
import sys
from typing import Any

from torch import nn

from trueline.capture.model.layout import unwrap

_LIBRARIES = ("torch", "trueline")


def name_of(model: nn.Module) -> str:
    """Name of the model's class, inside of DDP and torch.compile."""
    return type(unwrap(model)).__name__


def name_of_called(model: nn.Module) -> str:
    """The variable or attribute by which the script that is calling ``model`` has it, else the name of its class."""
    frame: Any = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).split(".")[0] in _LIBRARIES:
        frame = frame.f_back
    if frame is not None:
        owner = frame.f_locals.get("self")
        attributes = owner._modules if isinstance(owner, nn.Module) else getattr(owner, "__dict__", {})
        for names in (frame.f_locals, attributes, frame.f_globals):
            for name, value in list(names.items()):
                if value is model and name != "self" and re.fullmatch(r"[A-Za-z]\w*", name):
                    return str(name)
    return name_of(model)
