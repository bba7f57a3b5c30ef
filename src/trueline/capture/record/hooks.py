"""Hooks that are on while a step is recorded: on modules, for their forward passes, and on the tensors that recorded
calls took and returned, for their gradients.

Hooks on tensors see a gradient when all of it has been added up, and leave the order of adding as it is; the backward
hooks of modules put an identity into the graph and so change that order.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from trueline.capture.model.layout import clean_name, unwrap
from trueline.capture.model.untraced import CapturingHook, Hook, compiled_in_place
from trueline.capture.record.calls import Call


class ModuleCalls:
    """Hooks on every module that runs eagerly. ``enter(name, module, args, kwargs)`` is called before a forward pass,
    ``leave(name, module, args, output)`` after it, also where it raised (output None).

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

    def attach(self, *, wants: Callable[[str], bool] | None = None) -> None:
        """Put the hooks on, with ``wants`` only on the model itself and on modules of these names."""
        self.compiled = []
        for position, (name, module) in enumerate(eager_modules(self._model, self.compiled)):
            if position and wants is not None and not wants(name):
                continue
            enter = Hook(functools.partial(self._enter, name), num_args=3)
            leave = Hook(functools.partial(self._leave, name))
            self._handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            self._handles.append(module.register_forward_hook(leave, always_call=True))

    def name_of(self, module: nn.Module) -> str:
        """Clean FQN of ``module``, or of its class where it is not part of the model."""
        if not self._names:
            self._names = {id(inner): clean_name(name) for name, inner in unwrap(self._model).named_modules() if name}
        return self._names.get(id(module), type(module).__name__)

    def detach(self) -> None:
        self._names.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def eager_modules(model: nn.Module, compiled: list[str]) -> list[tuple[str, nn.Module]]:
    """(clean FQN, module) of all modules outside compiled regions, the outermost first; the model itself has the name
    of its class. The names of compiled ones are added to ``compiled``: of these only the wrapper is there, if any.
    """
    root = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    modules: list[tuple[str, nn.Module]] = []
    visited: set[int] = set()

    def visit(prefix: str, module: nn.Module) -> None:
        if id(module) in visited:
            return
        visited.add(id(module))
        name = clean_name(prefix) if prefix else type(unwrap(module)).__name__
        if "_orig_mod" in module._modules:  # looking for the attribute costs an exception
            compiled.append(name)
            modules.append((name, module))
            return
        if compiled_in_place(module):
            compiled.append(name)
            return
        modules.append((name, module))
        for child, inner in module.named_children():
            visit(f"{prefix}.{child}" if prefix else child, inner)

    visit("", root)
    return modules


CallSlots = list[Any]
"""[call, slot, next call, its slot, …]: a flat list, which is faster to collect than pairs."""


class GradientHooks:
    """Calls ``arrived(call_slots, gradient)`` when the gradient with respect to a watched tensor is complete.

    One hook a tensor, however many calls it belongs to; hooks on tensors inside the graph go away with it, those on
    leaves with ``detach``.
    """

    def __init__(self, arrived: Callable[[CallSlots, Tensor], None]) -> None:
        self._arrived = arrived
        self._hooked: dict[int, _GradientHook] = {}
        self._handles: list[Any] = []

    def watch(self, x: Tensor, call: Call, slot: str) -> None:
        """Record the gradient with respect to ``x`` for a slot of a call; do nothing where there will be none."""
        if not x.requires_grad:
            return
        previous = self._hooked.get(id(x))
        if previous is not None and previous.tensor() is x and previous.version == x._version:
            previous.call_slots += (call, slot)
            return
        hook = self._hooked[id(x)] = _GradientHook(self, x, [call, slot])
        self._handles.append(x.register_hook(hook))

    def detach(self) -> None:
        """Take all hooks off and ignore all gradients from now on, also those of graphs that still exist."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooked.clear()
        self._arrived = _ignore


class _GradientHook(CapturingHook):
    """Hook on a tensor; a copy of the tensor (``deepcopy``) gets one that does nothing. ``tensor`` returns the tensor,
    None where it is gone.
    """

    __slots__ = ("call_slots", "hooks", "tensor", "version")
    __torch_unserializable__ = True

    def __init__(self, hooks: GradientHooks, x: Tensor, call_slots: CallSlots) -> None:
        self.hooks, self.call_slots = hooks, call_slots
        self.version = x._version
        # torch swaps no leaf that has a weak reference; what is no leaf would keep its graph alive without.
        self.tensor: Callable[[], Tensor | None] = (lambda: x) if x.is_leaf else weakref.ref(x)

    def __call__(self, gradient: Tensor | None) -> None:
        self.hooks._arrived(self.call_slots, gradient)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[[Tensor], None]:
        return _silent


def _silent(gradient: Tensor | None) -> None:
    """Does nothing: the hook of a copied tensor."""


def _ignore(call_slots: CallSlots, gradient: Tensor) -> None:
    """Ignores a gradient after ``detach``."""
