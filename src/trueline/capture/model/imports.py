"""Calls made once a module has been imported, which is not imported for that."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, call: Callable[[ModuleType], None]) -> None:
    """Run ``call`` with the module ``name``: now where it is imported, else when it has been. What raises there is
    dropped: the import is the script's.
    """
    module = sys.modules.get(name)
    if module is not None:
        call(module)
    else:
        sys.meta_path.insert(0, _Waiting(name, call))


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds the module as the finders behind it do, once, and has its loader call back."""

    def __init__(self, name: str, call: Callable[[ModuleType], None]) -> None:
        self._name, self._call = name, call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        for finder in [*sys.meta_path]:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Calling(self, spec.loader, self._call)
                return spec
        return None


class _Calling(importlib.abc.Loader):
    """Loads as ``loader`` does, and then calls."""

    def __init__(self, finder: _Waiting, loader: Any, call: Callable[[ModuleType], None]) -> None:
        self._finder, self._loader, self._call = finder, loader, call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self._finder)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        with suppress(Exception):
            self._call(module)
