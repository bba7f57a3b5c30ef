"""Calls of functions of torch, as ``TorchFunctionMode`` sees them, wherever they come from."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable
from types import FrameType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._device import DeviceContext

from trueline.capture.dropout import NoDropout
from trueline.capture.model.patches import Patch, calling_of, unseen
from trueline.capture.model.untraced import OWN_MODULES, _is_tracing, in_backward
from trueline.capture.record.callers import called_below, called_by

SILENT = frozenset(
    {
        *("backward", "grad", "dim", "size", "stride", "numel", "nelement", "element_size", "item", "tolist", "numpy"),
        *("data_ptr", "storage_offset", "storage", "untyped_storage", "is_inference", "is_same_size", "register_hook"),
        *("requires_grad_", "retain_grad", "get_device", "type", "ndimension"),
    }
    | {"record_stream", "has_names", "apply_", "map_", "result_type", "can_cast", "promote_types"}
    | {f"__{name}__" for name in ("bool", "len", "float", "int", "index", "repr", "format", "hash", "contains", "iter")}
    | {"__get__", "__set__", "__delete__", "__reduce_ex__", "__deepcopy__", "__setstate__", "__dir__"}
    | {"register_post_accumulate_grad_hook", "_wrap_tensor_autograd"}
)
"""Functions that compute no tensor and are not recorded, to save time; every other function is recorded."""

LEAVING = frozenset({"item", "tolist", "numpy", *(f"__{name}__" for name in ("bool", "float", "int", "index"))})
"""Functions of those by which a value leaves torch: all that a script decides is decided by them."""

_LOADING = "torch.utils.data"
"""Callers that draw, order and collate samples."""

_PLUMBING = (
    *("torch.distributed.", "torch.nn.parallel.", "torch.utils.", "torch.random", "torch.autograd."),
    *("torch._dynamo", "torch._inductor", *OWN_MODULES),
    *("deepspeed.runtime.", "deepspeed.utils.", "megatron.core.distributed."),
)
"""Callers that copy values without computing any: FSDP, ZeRO (also memory that nothing has filled), a DataLoader's
collating, checkpointing, and Trueline."""

_DEFINING_MODULES = ("torch.overrides", "torch.nn.functional", "torch.functional", "torch._tensor", "torch._ops")
"""Modules that define the functions themselves: their frames are between Trueline's and the caller's."""


_COMPILED = "torch._functorch._aot_autograd."
"""Prefix of the modules that run a backward pass which AOTAutograd compiled."""

ENGINE = getattr(getattr(torch.autograd, "_engine_run_backward", None), "__code__", None)
"""The function through which Python enters the engine."""

_IN_PLACE = frozenset({"setitem", "iadd", "isub", "imul", "itruediv", "ipow", "iand", "ior", "ixor"})

_CUTTING = frozenset({"getitem", "narrow", "select", "split", "chunk", "unbind"})
"""Functions that take a part of a buffer, also of one that nothing has filled yet."""


_FUNCTION = types.FunctionType
_BUILT = frozenset(
    (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
)
_OPERATORS = frozenset((torch._ops.OpOverload, torch._ops.OpOverloadPacket))

_ASKS_MODES = torch.overrides.handle_torch_function.__code__
"""Code of what a function of torch that is written in Python calls before it does anything else."""


class Function:
    """One function of torch. ``name`` is '' where it is not recorded; functional collectives are not, because
    ``Collectives`` records what they send.
    """

    __slots__ = ("api", "cuts", "flags", "name", "uninitialised")

    def __init__(self, func: Callable[..., Any], *, shown: frozenset[str] = frozenset()) -> None:
        plain = _is_torchs(func) or type(func) is _FUNCTION
        name, module = (
            (getattr(func, "__name__", ""), getattr(func, "__module__", "")) if plain else ("", type(func).__module__)
        )
        name = name if type(name) is str and name else type(func).__name__
        namespace = ""
        if type(func) in _OPERATORS:
            namespace, name = str(func).split(".")[:2]
        hidden = (name in SILENT and name not in shown) or name.startswith(("_record_function", "_set_grad", "is_"))
        name = name.strip("_") + "_" * (name.endswith("_") and not name.endswith("__"))
        self.name = "" if hidden or namespace == "_c10d_functional" else name
        self.api = ((resolve_name(func) if plain else None) or f"{module}.{name}") if self.name else ""
        self.flags = "inplace" if name.endswith("_") or name in _IN_PLACE else ""
        self.cuts = name in _CUTTING
        self.uninitialised = name.removeprefix("new_") in ("empty", "empty_like", "empty_strided", "empty_permuted")


def _is_torchs(func: Callable[..., Any]) -> bool:
    """True if ``func`` is torch's own, or Python's: not what somebody has put in its place, nor a callable whose hash
    and attributes would run code of the user's.
    """
    kind = type(func)
    if kind is _FUNCTION:
        return str(func.__globals__.get("__name__", "")).startswith("torch")
    return kind in _BUILT or kind.__module__.startswith("torch")


def _replaced(func: Callable[..., Any], asking: FrameType | None) -> Callable[..., Any]:
    """The function that a mode is asked about, where ``func`` was put in its place.

    Torch looks functions up by their names to ask a mode, and finds what a script has put there: ``Tensor.backward`` of
    the user's, say, which has called torch's and would run twice. ``asking`` is the frame of that, where it is written
    in Python.
    """
    if asking is None:
        base_attributes = vars(torch._C.TensorBase)
        names = (name for name, value in vars(Tensor).items() if value is func and name in base_attributes)
        name = next(names, None)
        return func if name is None else base_attributes[name]
    code = asking.f_code
    if getattr(func, "__code__", None) is code:
        return func
    cells = tuple(types.CellType(asking.f_locals[name]) for name in code.co_freevars)
    # torch does not hand on each argument (`grad_variables` of backward): the rest stay as the frame was given them
    names, num = code.co_varnames, code.co_argcount
    original = _FUNCTION(code, asking.f_globals, None, tuple(asking.f_locals[name] for name in names[:num]), cells)
    original.__kwdefaults__ = {name: asking.f_locals[name] for name in names[num : num + code.co_kwonlyargcount]}
    return original


class FunctionCalls(TorchFunctionMode):
    """Hands every call to the method ``record(function, call, args, kwargs, frame)``, which must return what ``call()``
    does, as long as its object lives: torch keeps the mode while it is on.
    """

    def __init__(self, record: MethodType) -> None:
        super().__init__()
        self.sees_all = False
        """Whether it also sees what loads data, and values that leave torch."""
        self._record = weakref.WeakMethod(record)
        self._functions: dict[Any, Function] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by torch instead of ``func``."""
        kwargs = kwargs or {}
        frame = sys._getframe(1)
        # A function written in C calls this directly, one written in Python through `handle_torch_function`.
        asking = frame.f_back if frame.f_code is _ASKS_MODES else None
        caller, call_as = frame, called_by
        if asking is not None:
            caller, call_as = asking.f_back or asking, called_below
        try:
            if _is_torchs(func):
                function = self._functions.get(func)
                if function is None:
                    shown = LEAVING if self.sees_all else frozenset[str]()
                    function = self._functions[func] = Function(func, shown=shown)
            else:
                func = _replaced(func, asking)
                function = Function(func)
        except Exception:  # a callable of the user's that is like no function
            return call_as(caller, func, args, kwargs)
        if not function.name or is_tracing():
            return call_as(caller, func, args, kwargs)
        # Last of the checks, as it goes through the frames.
        if in_backward() and _is_inside(frame):
            return call_as(caller, func, args, kwargs)
        while (name := frame.f_globals.get("__name__", "")) in _DEFINING_MODULES and frame.f_back is not None:
            frame = frame.f_back
        is_plumbing = name.startswith(_PLUMBING) and not (self.sees_all and name.startswith(_LOADING))
        record = None if is_plumbing else self._record()
        if record is None:
            return call_as(caller, func, args, kwargs)
        return record(function, lambda: call_as(caller, func, args, kwargs), args, kwargs, frame)

    def is_on(self) -> bool:
        """True if it is on the stack of modes of this thread."""
        return self in torch.overrides._get_current_function_mode_stack()

    def take_off(self) -> bool:
        """Take it off the stack where it is the innermost mode; return whether it was."""
        depth = torch._C._len_torch_function_stack()  # type: ignore[attr-defined]
        innermost = depth > 0 and torch._C._get_function_stack_at(depth - 1) is self  # type: ignore[attr-defined]
        if innermost:
            torch.overrides._pop_mode()
        return innermost

    def install(self, *, above: int) -> None:
        """Put it on the stack, with so many of the modes that are there above it."""
        modes_above = [torch.overrides._pop_mode() for _ in range(above)]
        for mode in (self, *reversed(modes_above)):
            torch.overrides._push_mode(mode)

    def remove(self) -> int | None:
        """Take it off the stack; return how many modes were above it, None where it was not there."""
        if not self.is_on():
            return None
        above = torch.overrides._get_current_function_mode_stack()[::-1].index(self)
        modes_above = [torch.overrides._pop_mode() for _ in range(above)]
        torch.overrides._pop_mode()
        for mode in reversed(modes_above):
            torch.overrides._push_mode(mode)
        return above


class BackwardCalls:
    """Keeps ``mode`` on while autograd's engine runs, so that calls inside it are recorded: recomputation, and backward
    functions written in Python. Torch takes modes off while it runs ``Tensor.backward``. ``ended`` is called when a
    backward pass that is not nested in another has ended; ``compiles`` where autograd compiles one, before it does: our
    hooks on tensors would be in the graph.
    """

    def __init__(self, mode: FunctionCalls, ended: Callable[[], None], compiles: Callable[[], None]) -> None:
        self._mode = mode
        self._ended = ended
        self._compiles = compiles
        self._patch = Patch(torch.autograd, "_engine_run_backward", calling_of(self._run))

    def attach(self, *, sees_functions: bool) -> None:
        """Wrap the function through which Python enters the engine; do nothing where this torch has no function of that
        name. With ``sees_functions`` the mode is put on.
        """
        self._sees_functions = sees_functions
        if hasattr(torch.autograd, "_engine_run_backward"):
            self._patch.install()

    def detach(self) -> None:
        self._patch.remove()

    @unseen
    def _run(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        outermost = not in_backward()
        compiled = sys.modules.get("torch._dynamo.compiled_autograd")
        try:
            if getattr(compiled, "compiled_autograd_enabled", False):
                self._compiles()
                return run(*args, **kwargs)
            if not self._sees_functions or self._mode.is_on() or is_tracing():
                return run(*args, **kwargs)
            with self._mode:
                return run(*args, **kwargs)
        finally:
            if outermost:
                self._ended()


def _is_inside(frame: FrameType | None) -> bool:
    """True if the call is part of a larger one that autograd's engine has made: a kernel inside a user's
    ``__torch_dispatch__``, or the backward pass of a compiled function. In a forward pass both are recorded as a whole.
    """
    while frame is not None and frame.f_code is not ENGINE:
        if frame.f_code.co_name == "__torch_dispatch__" or frame.f_globals.get("__name__", "").startswith(_COMPILED):
            return True
        frame = frame.f_back
    return False


def is_tracing() -> bool:
    """True if a compiler traces with tensors that hold no values, or `torch.jit.trace` puts what runs in a graph."""
    return _is_tracing() or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None  # type: ignore[attr-defined]


def foreign_note(*, below: FunctionCalls | None = None) -> str | None:
    """The note on modes on the stack, or on those ``below`` one, that are neither Trueline's nor the default device;
    None without one. Their owner takes off whichever is innermost then, which must not be ours.
    """
    stack = torch.overrides._get_current_function_mode_stack()
    stack = stack[: stack.index(below)] if below in stack else stack
    foreign = [type(mode).__name__ for mode in stack if not isinstance(mode, (FunctionCalls, NoDropout, DeviceContext))]
    if not foreign:
        return None
    return (
        f"torch function mode {', '.join(foreign)} is active: calls outside of the model's forward pass are not "
        "recorded, as ours could not be taken off in order."
    )
