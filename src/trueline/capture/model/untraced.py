"""Calls of Trueline by torch: hooks that survive what people do to modules, and that ``torch.compile`` never sees.

Dynamo compiles every Python frame that starts while a compiled region runs, after a graph break too, and what a frame
calls. So each of our frames that torch may call is marked as one to leave alone, and calls the rest with dynamo turned
off. All of that is in torch's core: asking for it does not import ``torch._dynamo``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch._C._dynamo import eval_frame as _dynamo
from torch.jit import ScriptModule
from torch.utils._python_dispatch import _disable_current_modes

from trueline.capture.model.failures import is_users
from trueline.capture.model.layout import compiled_inside, unwrap
from trueline.schema.errors import TruelineError
from trueline.schema.safe_logger import SafeLogger

_log = SafeLogger()

_is_tracing: Callable[[], bool] = torch._C._is_tracing  # what runs while `torch.jit.trace` looks would be in its graph

num_dispatch_modes = torch._C._len_torch_dispatch_stack  # type: ignore[attr-defined]
_FunctionsUnseen = torch._C.DisableTorchFunction
are_functions_unseen: Callable[[], bool] = getattr(torch._C, "_is_torch_function_all_disabled", lambda: False)
"""True if no mode of functions sees what runs now, as in an ``Unseen`` block."""


def skipped(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, whose own frames dynamo runs as they are."""
    code: CodeType = function.__code__
    if hasattr(_dynamo, "set_code_exec_strategy"):  # since torch 2.7
        skip = _dynamo._FrameExecStrategy(_dynamo._FrameAction.SKIP, _dynamo._FrameAction.DEFAULT)
        _dynamo.set_code_exec_strategy(code, skip)
    else:
        _dynamo.skip_code(code)
    return function


class Unseen:
    """A block that no mode of torch sees, whoever put it on: counters of calls or flops, a default device, a log.
    Tensors of a class with a ``__torch_function__`` are plain ones inside.
    """

    __slots__ = ("_dispatch", "_functions")

    def __enter__(self) -> None:
        self._functions, self._dispatch = _FunctionsUnseen(), None
        self._functions.__enter__()
        if num_dispatch_modes():
            # Costs much more than the functions' switch, so only where a dispatch mode is on.
            self._dispatch = _disable_current_modes()
            self._dispatch.__enter__()

    def __exit__(self, *raised: Any) -> None:
        if self._dispatch is not None:
            self._dispatch.__exit__(None, None, None)
        self._functions.__exit__(*raised)


@skipped
def untraced(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns what ``call`` does, run with dynamo and all modes turned off in this thread."""
    before = _dynamo.set_eval_frame(None)
    try:
        if num_dispatch_modes():
            with Unseen():
                return call(*args, **kwargs)
        with _FunctionsUnseen():
            return call(*args, **kwargs)
    finally:
        _dynamo.set_eval_frame(before)


OWN_MODULES = ("trueline.capture.", "trueline.laws.", "trueline.tensor.")
"""Prefixes of the modules of Trueline that run within a training."""


class CapturingHook:
    """Base of every hook of Trueline."""

    __slots__ = ()


class Hook(CapturingHook):
    """Calls through to Trueline. Its copies (``copy.deepcopy`` for EMA), and what is unpickled (``torch.save`` of the
    whole model), call nothing: they belong to another model. Neither does it where a module that has it is compiled:
    that would be in the graph.

    A hook that is registered ``with_kwargs`` and is taken off while torch goes through the hooks of its module (a step
    that ends then, by a forward pass, takes its own off) is still called, but without them: that is not passed on.

    What ``call`` raises by mistake is logged, and it is not called again. What Trueline raises on purpose goes on, and
    what a handler of a signal raises.
    """

    __name__ = "trueline"
    __torch_unserializable__ = True  # torch warns, where a tensor is pickled, of hooks that are not marked so

    def __init__(self, call: Callable[..., Any] | None = None, *, num_args: int = 0) -> None:
        self.call, self._num_args = call, num_args
        self.__qualname__ = self.__name__

    @skipped
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call through."""
        if self.call is None or len(args) < self._num_args or _is_tracing() or torch.compiler.is_compiling():
            return None
        try:
            return untraced(self.call, *args, **kwargs)
        except TruelineError:
            raise
        except Exception as error:
            if is_users(error):
                raise
            self.call = None
            with suppress(Exception):  # handlers and filters are the script's
                _log.exception("trueline: a hook failed and was dropped")
        return None

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return Hook()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")  # which Python has, where Trueline may be missing


def is_ours(hook: object) -> bool:
    """True if it is a hook of Trueline, or what becomes of one that is pickled."""
    return isinstance(hook, CapturingHook) or isinstance(getattr(hook, "__self__", None), contextlib.nullcontext)


def in_backward() -> bool:
    """True if autograd runs a backward pass in this thread: a forward pass is then a recomputation, as of a checkpoint,
    and a backward pass one inside another.
    """
    return torch._C._current_graph_task_id() != -1  # type: ignore[attr-defined]


def in_transform() -> bool:
    """True if ``torch.func`` transforms what runs: tensors then stand for others, and parameters are arguments."""
    return torch._C._functorch.maybe_current_level() is not None  # type: ignore[attr-defined]


def script_line() -> str:
    """File and line of the innermost frame that is neither torch's nor Trueline's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(("torch.", *OWN_MODULES)):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def forward_module(model: nn.Module) -> nn.Module | None:
    """The module whose forward hooks run in eager mode once a training step: the innermost that is not compiled.

    A hook inside a compiled region would be traced and could change what the compiler fuses, so the outermost wrapper
    is taken where anything below it is compiled; None where the outermost is compiled in place.
    """
    chain = [model]
    while (inner := _one_inside(chain[-1])) is not None:
        chain.append(inner)
    compiled = any(compiled_inside(module) is not None or compiled_in_place(module) for module in chain)
    if not compiled:
        return unwrap(model)
    return None if compiled_in_place(model) else model


def _one_inside(model: nn.Module) -> nn.Module | None:
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model.module
    return compiled_inside(model)


def compiled_in_place(module: nn.Module) -> bool:
    """True if calls of ``module`` itself are compiled, so that no hook runs in eager mode; TorchScript takes none."""
    return vars(module).get("_compiled_call_impl") is not None or isinstance(module, ScriptModule)
