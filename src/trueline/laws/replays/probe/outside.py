"""Whether the code of a forward pass reaches anything that a second pass would change and nobody could put back."""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import sysconfig
import threading
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.model.contents import PLAIN
from trueline.capture.model.untraced import is_ours
from trueline.laws.replays.probe.stored_state import NotStorable, StoredState

MAX_FUNCTIONS = 2_000
"""Functions of the user's that are read."""

_PATHS = tuple(
    os.path.join(os.path.realpath(path), "")
    for path in {*map(sysconfig.get_paths().get, ("stdlib", "platstdlib", "purelib", "platlib")), torch.__path__[0]}
    if path
)
"""Where Python, and what is installed into it, lie. Their code is taken to keep what it changes in its objects."""

_SEEN_OUTSIDE = frozenset({"print", "open", "input", "next", "exec", "eval", "__import__", "globals", "exit", "quit"})
"""Functions of Python whose second call is another one, or is seen by the user."""


_OF_VALUE = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR")


def reached_objects(model: nn.Module) -> list[tuple[str, object]]:
    """(name, object) of ``model`` and of the globals and closures that functions of the user's read in a forward pass,
    which may change what these hold. Raises ``NotStorable`` where such a function does what cannot be put back.
    """
    reader = _Reader()
    for module_name, module in model.named_modules():
        name = module_name or type(module).__name__
        for function in _called_by(module):
            reader.read(name, function, type(module))
    for name, function in [*replaced_functions(), *_global_hooks()]:
        reader.read(name, function, None)
    roots: list[tuple[str, object]] = []
    # what is reached holds functions, which reach more
    while len(roots) < 1 + len(reader.objects):
        roots = [("", model), *reader.objects.values()]
        state = StoredState(roots)
        for name, function in state.functions:
            reader.read(name, function, None)
        for name, value in state.objects:
            reader.read_methods(name, type(value))
    return roots


def replaced_functions() -> Iterator[tuple[str, types.FunctionType]]:
    """(name, function) of the user's that stand in the place of one of torch's."""
    for owner in (nn.Module, Tensor, torch, nn.functional):
        for name, function in list(vars(owner).items()):
            if isinstance(function, types.FunctionType) and not _is_library(function.__code__):
                yield f"{owner.__name__}.{name}", function


def _global_hooks() -> Iterator[tuple[str, Any]]:
    """Hooks that are called for all modules."""
    for name, table in list(vars(torch.nn.modules.module).items()):
        if name.startswith("_global_") and isinstance(table, dict):
            yield from (("a hook of all modules", hook) for hook in table.values() if not is_ours(hook))


def users_thread() -> str:
    """Name of a thread that runs the user's code beside the training; '' without."""
    for thread in threading.enumerate():
        run = getattr(thread, "_target", None) or type(thread).run
        code = run.__code__ if isinstance(run, types.FunctionType | types.MethodType) else None
        if thread is not threading.main_thread() and code is not None and not _is_library(code):
            return thread.name
    return ""


def _called_by(module: nn.Module) -> Iterator[Any]:
    own = vars(module).get("forward")
    yield type(module).forward if own is None else own
    for key in ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks"):
        yield from (hook for hook in vars(module).get(key, {}).values() if not is_ours(hook))
    for parameter in module.parameters(recurse=False):
        yield from (hook for hook in (parameter._backward_hooks or {}).values() if not is_ours(hook))


class _Reader:
    """Reads functions, and those that they call."""

    def __init__(self) -> None:
        self.objects: dict[int, tuple[str, object]] = {}
        self._functions = set[tuple[types.FunctionType, type | None]]()
        self._words = {"__call__", "__getitem__", "__setitem__", "__iter__", "__enter__", "__exit__"}

    def read_methods(self, name: str, kind: type) -> None:
        """Read the methods of a class of the user's that functions which were read may call."""
        for base in kind.__mro__:
            for method_name, method in vars(base).items():
                if method_name in self._words and isinstance(method, (types.FunctionType, staticmethod, classmethod)):
                    self.read(name, method, kind)

    def read(self, name: str, function: Any, owner: type | None) -> None:
        """Read ``function`` of what is called ``name``; methods that it calls are those of ``owner``."""
        while isinstance(function, functools.partial):
            function = function.func
        if isinstance(function, types.MethodType):
            owner = type(function.__self__) if owner is None else owner
            self._object(name, function.__self__)
            function = function.__func__
        if isinstance(function, (staticmethod, classmethod)):
            function = function.__func__
        if not isinstance(function, types.FunctionType):
            if callable(function) and not isinstance(function, (type, types.BuiltinFunctionType)):
                self._object(name, function)
                call = vars(type(function)).get("__call__")
                if isinstance(call, types.FunctionType) and not _is_library(call.__code__):
                    self.read(name, call, type(function))
            return
        if (function, owner) in self._functions:
            return
        self._functions.add((function, owner))
        code = function.__code__
        if _is_library(code):
            # a decorator, as torch.no_grad is, has the user's function in a cell
            for cell in function.__closure__ or ():
                self._decorated(name, cell, owner)
            return
        if len(self._functions) > MAX_FUNCTIONS:
            raise NotStorable("it has more functions than are read")
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._code(name, code, function.__globals__, cells, owner)

    def _code(
        self, name: str, code: types.CodeType, names: dict[str, Any], cells: dict[str, Any], owner: type | None
    ) -> None:
        self._words.update(code.co_names)
        module: types.ModuleType | None = None
        for instruction in dis.get_instructions(code):
            operation, word = instruction.opname, instruction.argval
            before, module = module, None
            if before is not None and operation in _OF_VALUE:
                if operation == "STORE_ATTR":
                    raise NotStorable(f"{_place(name, code)} sets {word} of {before.__name__}")
                module = self._in_module(name, code, before, word)
            elif operation in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                raise NotStorable(f"{_place(name, code)} sets the global {word}")
            elif operation == "STORE_DEREF" and word in code.co_freevars:
                raise NotStorable(f"{_place(name, code)} sets {word} of the function around it")
            elif operation in ("LOAD_GLOBAL", "LOAD_NAME"):
                module = self._global(name, code, names, word)
            elif operation in ("LOAD_DEREF", "LOAD_CLASSDEREF") and word in cells:
                with contextlib.suppress(ValueError):  # the cell is empty
                    module = self._value(f"{word} of {code.co_name}", cells[word].cell_contents)
            elif operation in _OF_VALUE and owner is not None:
                self._method(name, owner, word)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(name, constant, names, cells, owner)

    def _global(self, name: str, code: types.CodeType, names: dict[str, Any], word: str) -> types.ModuleType | None:
        if word in names:
            return self._value(f"the global {word}", names[word])
        if word in _SEEN_OUTSIDE:
            raise NotStorable(f"{_place(name, code)} calls {word}")
        return None

    def _method(self, name: str, owner: type, word: str) -> None:
        method = next((vars(base)[word] for base in owner.__mro__ if word in vars(base)), None)
        if isinstance(method, property):
            method = method.fget
        if isinstance(method, (types.FunctionType, staticmethod, classmethod)):
            self.read(name, method, owner)

    def _decorated(self, name: str, cell: types.CellType, owner: type | None) -> None:
        with contextlib.suppress(ValueError):  # the cell is empty
            content = cell.cell_contents
            if isinstance(content, (types.FunctionType, types.MethodType)):
                self.read(name, content, owner)

    def _in_module(self, name: str, code: types.CodeType, module: types.ModuleType, word: str) -> Any:
        """Read what the user's code takes from ``module``; returns that if it is a module itself."""
        value = vars(module).get(word)
        if module.__name__.startswith("torch.distributed") or getattr(value, "__name__", "") == "torch.distributed":
            raise NotStorable(f"{_place(name, code)} uses torch.distributed: other ranks may take part")
        if isinstance(value, types.ModuleType):
            return value
        file = getattr(module, "__file__", None)
        if file and not os.path.realpath(file).startswith(_PATHS):
            self._value(f"{module.__name__}.{word}", value)
        return None

    def _value(self, name: str, value: Any) -> types.ModuleType | None:
        """Read a value that the user's code reaches; returns it if it is a module."""
        if isinstance(value, types.FunctionType):
            self.read(name, value, None)
        elif isinstance(value, type):
            if issubclass(value, torch.autograd.Function):
                for part in ("forward", "backward", "setup_context"):
                    self.read(name, getattr(value, part), value)
            elif _is_users(value):
                for part in ("__init__", "__new__", "__call__"):
                    self.read(name, vars(value).get(part), value)
        elif isinstance(value, types.ModuleType):
            return value
        else:
            self._object(name, value)
        return None

    def _object(self, name: str, value: Any) -> None:
        if type(value) not in PLAIN:
            self.objects.setdefault(id(value), (name, value))


def _place(name: str, code: types.CodeType) -> str:
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


@functools.cache
def _is_library(code: types.CodeType) -> bool:
    path = os.path.realpath(code.co_filename)
    return code.co_filename.startswith("<") or path.startswith(_PATHS) or f"{os.sep}trueline{os.sep}" in path


def _is_users(kind: type) -> bool:
    functions = [value for value in vars(kind).values() if isinstance(value, types.FunctionType)]
    return any(not _is_library(function.__code__) for function in functions)
