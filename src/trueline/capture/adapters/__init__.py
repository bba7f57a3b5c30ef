"""The installed adapters, which show a worker's gradient before its framework reduces it: ours and those of other
packages by one door, the group ``trueline.adapters``.
"""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import EntryPoint
from typing import Any

import torch.distributed as dist
from torch import nn

from trueline.capture.adapters.base import Adapter, AdapterModule, with_defaults
from trueline.schema.errors import CaptureError, TruelineError
from trueline.schema.plugins import entry_points
from trueline.schema.text.reading import why

GROUP = "trueline.adapters"


def choose_adapter(model: nn.Module, process_group: dist.ProcessGroup | None = None) -> Adapter:
    """The adapter for ``model``: of the installed ones that fit it, the one that is asked first.

    Raises ``CaptureError`` for an entry point that is no adapter, where none fits, and where one fails: the version of
    a framework may be one that it does not know.
    """
    modules = installed_adapters()
    for module in modules:
        try:
            adapter = module.adapter_for(model, process_group)
        except TruelineError:
            raise
        except Exception as error:
            raise CaptureError(
                f"Adapter {module.__name__} failed on a {type(model).__name__} ({type(error).__name__}: {error}). "
                "docs/frameworks.md has the versions of frameworks that were tried: use one of these, or report it."
            ) from error
        if adapter is not None:
            return with_defaults(adapter)
    names = ", ".join(module.__name__ for module in modules)
    raise CaptureError(
        f"None of the adapters {names} fits a {type(model).__name__}. Reinstall trueline, whose own fit any model."
    )


def installed_adapters() -> list[AdapterModule]:
    """Every adapter's module, in the order in which they are asked. Raises ``CaptureError`` for an entry point that
    is none.

    Where the package is run from its sources without being installed there are no entry points; then it is the
    modules of this package.
    """
    modules: list[Any] = [_loaded(entry) for entry in entry_points(group=GROUP)] or [
        module
        for info in pkgutil.iter_modules(__path__, f"{__name__}.")
        if hasattr(module := importlib.import_module(info.name), "adapter_for")
    ]
    return sorted(modules, key=lambda module: -module.PRECEDENCE)


def _loaded(entry: EntryPoint) -> AdapterModule:
    try:
        module = entry.load()
    except ImportError as error:
        raise CaptureError(
            f"Adapter '{entry.name}' cannot be loaded from '{entry.value}': {why(error)}. Reinstall or remove the "
            "package that registers it."
        ) from error
    missing = [part for part in ("PRECEDENCE", "adapter_for") if not hasattr(module, part)]
    if missing:
        raise CaptureError(
            f"Adapter '{entry.name}' in {entry.value} lacks {', '.join(missing)}. An adapter is a module with "
            "PRECEDENCE and adapter_for(model, process_group)."
        )
    return module
