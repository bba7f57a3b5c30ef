"""The device that operations are called on, and modules that define operations of others."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch

from trueline.schema.errors import InputError


def require_device(name: str) -> str:
    """``name``, or for "" the accelerator of this machine, else the CPU. Raises ``InputError`` where it is not here."""
    if not name:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return "cpu" if accelerator is None else accelerator.type
    try:
        torch.empty(1, device=name).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"There is no device '{name}' here ({str(error).splitlines()[0]}). Pass --device cpu, or leave it out."
        ) from None
    return name


def import_all(modules: Sequence[str]) -> None:
    """Import modules that define operations. Raises ``InputError``."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a module raises
            raise InputError(f"--import {name}: {type(error).__name__}: {error}. Is it on PYTHONPATH?") from None
