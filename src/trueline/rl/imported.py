"""Tells when a module of another package has been imported, however late that is: nothing is imported for it."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from trueline.schema.safe_logger import SafeLogger
from trueline.schema.text.reading import why

_log = SafeLogger()

Then = Callable[[ModuleType], None]


def after_import(name: str, then: Then) -> None:
    """Call ``then`` with the module of this name: now if there is one, else once it has been imported."""
    module = sys.modules.get(name)
    if module is not None and not _is_partial(module):
        _call(then, module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.waiting.setdefault(name, []).append(then)
    if module is not None:
        _finder.partial.add(name)


def _is_partial(module: ModuleType) -> bool:
    """True while the module is being imported."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _Finder(importlib.abc.MetaPathFinder):
    """Lets modules that are waited for be loaded by a loader of ours; of all others it knows nothing."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Then]] = {}
        self.partial: set[str] = set()
        """Modules whose import had begun before they were waited for: the next import of anything tells their end."""

    def _tell_partial(self) -> None:
        for name in [*self.partial]:
            module = sys.modules.get(name)
            if module is None or not _is_partial(module):
                self.partial.discard(name)
                for then in self.waiting.pop(name, []) if module is not None else []:
                    _call(then, module)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if self.partial:
            self._tell_partial()
        if name not in self.waiting:
            return None
        # Others may have finders of their own, as installations that can be edited: the first that knows it has it.
        finders = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((spec for finder in finders if (spec := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self.waiting)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads a module as its own loader does, and then calls those that wait for it."""

    def __init__(self, loader: Any, waiting: dict[str, list[Then]]) -> None:
        self._loader, self._waiting = loader, waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        for then in self._waiting.pop(module.__name__, []):
            _call(then, module)


_finder = _Finder()


def _call(then: Then, module: ModuleType) -> None:
    """An import never fails for us."""
    try:
        then(module)
    except Exception as error:
        _log.warning("trueline: %s is not followed: %s: %s.", module.__name__, type(error).__name__, why(error))
