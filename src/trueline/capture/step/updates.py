"""The updates of optimizers that end a step of the watched model.

A step ends at the first update after a training forward pass; a second optimizer of the same model, or the second
parameter group of one that updates its groups one by one (DeepSpeed's ZeRO), belongs to the step that has just ended.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_PARAMS = operator.itemgetter("params")
_STEP = next(
    part
    for part in Optimizer.profile_hook_step.__code__.co_consts
    if isinstance(part, CodeType) and part.co_name == "wrapper"
)
"""The code of the function in which torch wraps every optimizer's ``step``, and which calls the hooks."""


def is_compiled(param: Tensor, *, update: bool) -> bool:
    """True if ``torch.compile`` has traced an ``update`` of the optimizer of ``param``, or else calls of its model.
    Compiled code calls no hooks.
    """
    return getattr(param, "_dynamo_static_input_type", None) == ("guarded" if update else "unguarded")


Args = tuple[Any, ...]
"""Arguments of an optimizer's ``step``, itself first."""
Kwargs = dict[str, Any]


def closure_of(args: Args, kwargs: Kwargs) -> Any:
    """The closure that computes the gradients in an optimizer's ``step``; None without."""
    return kwargs.get("closure", args[1] if len(args) > 1 else None)


def with_closure(
    args: Args, kwargs: Kwargs, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> tuple[Args, Kwargs] | None:
    """The arguments with the closure that ``wrap`` returns for theirs; None without one, and for an object that may be
    used for more than calling it.
    """
    closure = closure_of(args, kwargs)
    if not isinstance(closure, (FunctionType, MethodType, functools.partial)):
        return None
    wrapped = wrap(closure)
    return (args, kwargs | {"closure": wrapped}) if "closure" in kwargs else ((args[0], wrapped, *args[2:]), kwargs)


class Updates:
    """Follows the optimizers of one model. Updates of ``optimizers`` count; where there are none (left), of those
    that hold parameters for which ``watched`` is true of their ``id``, and until one of these comes, one that steps
    after a backward pass of the model: it holds copies (DeepSpeed's bf16, Megatron), or what was not there yet.

    ``ended_any`` is whether a step has ended.
    """

    def __init__(self, optimizers: Sequence[weakref.ref[Optimizer]], *, watched: Callable[[int], bool]) -> None:
        self._optimizer_refs = list(optimizers)
        self._watched = watched
        self._has_own = False
        self._has_gradient = False
        self._had_forward = True
        self._under_way = self._nested = False
        self._since_end: set[tuple[int, ...]] = set()
        self._ends: weakref.ref[Optimizer] | None = None
        self._versions: dict[int, int] = {}
        self.unseen()
        self.ended_any = False

    @property
    def asks_for_backward(self) -> bool:
        """True if ``saw_backward`` must be called to know which optimizer trains the model."""
        return not self._has_own and not self._alive()

    def add(self, optimizer: Optimizer) -> None:
        """Another optimizer was made whose updates count."""
        self._optimizer_refs.append(weakref.ref(optimizer))

    def saw_forward(self) -> None:
        """A training forward pass began."""
        self._had_forward = True

    def unseen(self) -> Optimizer | None:
        """The given optimizer whose compiled update ended a step since the last call, None without one. Such an update
        shows only in its parameters, which have changed.
        """
        ended = None
        for index, ref in enumerate(self._optimizer_refs):
            optimizer = ref()
            if optimizer is None:
                continue
            param = next(itertools.chain.from_iterable(map(_PARAMS, optimizer.param_groups)), None)
            if param is None:
                continue
            with torch._C.DisableTorchFunction():  # a mode of the user's may count what is read
                version = param._version
            before = self._versions.get(index)
            if before == version:
                continue
            self._versions[index] = version
            if before is not None and self._had_forward and is_compiled(param, update=True):
                ended = optimizer
        if ended is not None:
            self.ended_any = True
            self._had_forward = self._has_gradient = False
        return ended

    def saw_backward(self) -> None:
        """A gradient came back through the model's output."""
        self._has_gradient = True

    def running(self) -> Optimizer | None:
        """The outermost optimizer of this model whose ``step`` is running, with a closure; None without. Its update
        ends the step.
        """
        optimizer = next(iter([*self._on_the_stack()][::-1]), None)
        if optimizer is not None:
            self._ends = weakref.ref(optimizer)
            self._under_way = self._nested = True
        return optimizer

    def begin(self, optimizer: Optimizer, *, has_closure: bool) -> bool:
        """True if the update that ``optimizer`` is about to make ends the step. Call it from a hook of torch's.

        Whether it is nested in another update (an optimizer's step may call that of its base class, which has hooks of
        its own) is read from the call stack, which is right also after an update that raised; that is walked only where
        an update has begun and none has ended since.
        """
        if not self.counts(optimizer):
            return False
        self._nested = self._under_way and len([*self._on_the_stack()]) > 1
        if self._nested:
            return False
        self._under_way = True
        first_params = tuple(id(param) for group in optimizer.param_groups for param in group["params"][:1])
        if not (self._had_forward or has_closure or first_params in self._since_end):
            self._since_end.add(first_params)
            return False
        self._since_end = {first_params}
        self._ends = weakref.ref(optimizer)
        return True

    def end(self, optimizer: Optimizer) -> bool:
        """True if the update that ``optimizer`` has just made ended the step."""
        if self._ends is None or self._ends() is not optimizer:
            return False
        if self._nested and len([*self._on_the_stack()]) > 1:
            return False
        self._under_way = self._nested = False
        self._ends = None
        self.unseen()
        self.ended_any = True
        self._had_forward = self._has_gradient = False
        return True

    def counts(self, optimizer: Optimizer) -> bool:
        """True if updates of ``optimizer`` are those of this model."""
        alive = self._alive()
        if alive:
            return any(owner is optimizer for owner in alive)
        if any(self._watched(id(param)) for group in optimizer.param_groups for param in group["params"]):
            self._has_own = True
            return True
        return self._has_gradient and not self._has_own

    def _alive(self) -> list[Optimizer]:
        return [optimizer for ref in self._optimizer_refs if (optimizer := ref()) is not None]

    def _on_the_stack(self) -> Iterator[Optimizer]:
        """Optimizers of this model whose ``step`` is on this thread's stack, the innermost first."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            if frame.f_code is _STEP and self.counts(optimizer := frame.f_locals["args"][0]):
                yield optimizer
            frame = frame.f_back
