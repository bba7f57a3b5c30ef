"""Forward passes of modules: hooks that are on while a step is recorded, and which module runs just now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trueline.capture.model.layout import clean_name, unwrap
from trueline.capture.model.untraced import Hook


class ModuleCalls:
    """Hooks on every module that runs eagerly. ``enter(name, module, args, kwargs)`` is called before a forward pass,
    ``leave(name, module, output)`` after it, also where it raised (output None).

    Inside a compiled region a hook would be traced into the graph, so there only the outermost module is hooked.
    """

    def __init__(self, model: nn.Module, *, enter: Callable[..., None], leave: Callable[..., None]) -> None:
        self._enter = enter
        self._leave = leave
        self._model = model
        self._handles: list[Any] = []
        self._names: dict[int, str] = {}
        self.compiled: list[str] = []
        """Names of the modules at which compiled code begins: what runs inside them is not seen."""

    def attach(self) -> None:
        """Put the hooks on."""
        self.compiled = []
        for name, module in eager_modules(self._model, self.compiled):
            pre = Hook(_Pre(self._enter, name))
            post = Hook(_Post(self._leave, name))
            self._handles.append(module.register_forward_pre_hook(pre, with_kwargs=True))
            self._handles.append(module.register_forward_hook(post, always_call=True))

    def name_of(self, module: nn.Module) -> str:
        """Clean FQN of ``module``, or of its class where it is not part of the model."""
        if not self._names:
            self._names = {id(inner): clean_name(name) for name, inner in unwrap(self._model).named_modules() if name}
        return self._names.get(id(module), type(module).__name__)

    def detach(self) -> None:
        """Take the hooks off."""
        self._names.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _Pre:
    def __init__(self, enter: Callable[..., None], name: str) -> None:
        self._enter, self._name = enter, name

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._enter(self._name, module, args, kwargs)


class _Post:
    def __init__(self, leave: Callable[..., None], name: str) -> None:
        self._leave, self._name = leave, name

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._leave(self._name, module, output)


def eager_modules(model: nn.Module, compiled: list[str]) -> list[tuple[str, nn.Module]]:
    """(clean FQN, module) of all modules outside compiled regions, the outermost first; the model itself has the name
    of its class. The names of compiled ones are added to ``compiled``: of these only the wrapper is there, if any.
    """
    root = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    found: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()

    def visit(prefix: str, module: nn.Module) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        name = clean_name(prefix) if prefix else type(unwrap(module)).__name__
        if "_orig_mod" in module._modules:  # looking for the attribute costs an exception
            compiled.append(name)
            found.append((name, module))
            return
        if getattr(module, "_compiled_call_impl", None) is not None:
            compiled.append(name)
            return
        found.append((name, module))
        for child, inner in module.named_children():
            visit(f"{prefix}.{child}" if prefix else child, inner)

    visit("", root)
    return found


def in_backward() -> bool:
    """Whether autograd runs a backward pass in this thread: a forward pass is then a recomputation."""
    return torch._C._current_graph_task_id() != -1  # type: ignore[attr-defined]
