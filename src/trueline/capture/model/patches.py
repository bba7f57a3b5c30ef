"""Functions of torch that have no hook of their own, patched while someone listens and put back afterwards.

``torch.autograd.backward`` (which ``Tensor.backward`` calls) shows the loss, ``GradScaler.scale`` the loss before it is
scaled, ``DataLoader.__iter__`` the epoch, and ``destroy_process_group`` that no more sums can be made; under
``trueline run`` the constructors of optimizers and DDP modules show what is trained. A listener that raises is dropped:
training never sees it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trueline.capture.model.failures import is_users
from trueline.capture.model.untraced import Hook, _is_tracing, is_ours, skipped, untraced
from trueline.schema.safe_logger import SafeLogger

_log = SafeLogger()

UNSEEN = "<trueline only passes the call on; no line of warnings, as importlib._bootstrap>"
"""File name that a traceback shows for our frame, between the user's call and what it calls."""

Function = Callable[..., Any]

_Listener = tuple["weakref.ref[Any] | None", Callable[..., Any]]
"""The object of a method, None for a function or for what is kept alive, and what is called."""


def unseen(function: Function) -> Function:
    """``function``, whose frames `warnings` does not count: what torch warns of then points at the user's own line.

    It passes over frames whose file name holds both words, as it does over those of an import (CPython,
    ``warnings._is_internal_frame``).
    """
    function.__code__ = function.__code__.replace(co_filename=UNSEEN)
    return function


def calling(call: Function) -> Callable[[Function], Function]:
    """Returns a decorator: of an original it makes a function that runs ``call(original, *args, **kwargs)``."""
    return lambda original: lambda *args, **kwargs: call(original, *args, **kwargs)


def calling_of(method: MethodType) -> Callable[[Function], Function]:
    """Returns a decorator as ``calling`` does, of a method, as long as its object lives, which it does not keep."""
    weak = weakref.WeakMethod(method)
    return lambda original: (
        lambda *args, **kwargs: (
            original(*args, **kwargs) if (call := weak()) is None else call(original, *args, **kwargs)
        )
    )


class Patch:
    """One attribute of a class or module that is replaced while it is on, by what ``make`` makes of it: one frame, so
    that tracebacks of the user's code have no more. ``also`` holds the same object by the same name.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Function], Function], also: Any = None) -> None:
        self._owner, self._also = owner, also
        self._name = name
        self._make = make
        self._original: Any = None
        self._wrapped: Function | None = None

    def install(self) -> None:
        """Replace the attribute, unless it is replaced."""
        if self._wrapped is not None:
            return
        original = getattr(self._owner, self._name)
        wrapped = functools.wraps(original)(skipped(unseen(self._make(original))))
        wrapped._torchdynamo_inline = original  # type: ignore[attr-defined]  # what dynamo has in a graph instead

        # What the class itself holds: getattr has bound a classmethod or unpacked a staticmethod.
        self._original, self._wrapped = vars(self._owner).get(self._name, original), wrapped
        setattr(self._owner, self._name, wrapped)
        # a module that had imported it by name holds the original, unless the user replaced that
        if getattr(self._also, self._name, None) is original:
            setattr(self._also, self._name, wrapped)

    def remove(self) -> None:
        """Put the original back, if nobody patched over ours."""
        if self._wrapped is not None and getattr(self._owner, self._name) is self._wrapped:
            setattr(self._owner, self._name, self._original)
            if getattr(self._also, self._name, None) is self._wrapped:
                setattr(self._also, self._name, self._original)
            self._original = self._wrapped = None


class Switch:
    """True if the listeners that were added with it are called: while it is off, a call does nothing for them."""

    def __init__(self) -> None:
        self.is_on = False
        self._groups: list[_Listeners] = []

    def set(self, is_on: bool) -> None:
        """Turn the listeners on or off."""
        if is_on != self.is_on:
            self.is_on = is_on
            for listeners in self._groups:
                listeners.choose()

    def turn(self, listeners: _Listeners) -> None:
        """Turn entries of ``listeners`` on and off from now on."""
        self._groups.append(listeners)
        if self.is_on:
            listeners.choose()


class _Listeners:
    """Functions to be called, in order; ``active`` are those that are switched on. A method does not keep its object
    alive: what belongs to a model ends with it. A listener that raises is dropped.
    """

    def __init__(self, call_name: str) -> None:
        self._call_name = call_name
        self._entries: tuple[tuple[_Listener, Switch | None], ...] = ()
        self.active: tuple[_Listener, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, listener: Callable[..., Any], *, keep: bool = False, switch: Switch | None = None) -> None:
        """Call ``listener`` from now on, while ``switch`` is on, and ``keep`` the object of a method alive."""
        # a weak reference to a bound method would be dead at once
        if isinstance(listener, MethodType) and not keep:
            entry: _Listener = weakref.ref(listener.__self__), listener.__func__
        else:
            entry = None, listener
        self._entries += ((entry, switch),)
        if switch is None:
            self.active += (entry,)
        else:
            switch.turn(self)

    def remove(self, listener: Callable[..., Any]) -> None:
        """Call ``listener`` no more, nor what is gone."""
        self._entries = tuple(
            entry for entry in self._entries if (call := _call_of(entry[0])) is not None and call != listener
        )
        self.choose()

    def choose(self) -> None:
        """Set ``active`` to the entries that are switched on."""
        self.active = tuple(listener for listener, switch in self._entries if switch is None or switch.is_on)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the active listeners in order; returns the last result that is not None."""
        last = None
        for listener in self.active:
            ref, call = listener
            try:
                if ref is None:
                    returned = call(*args, **kwargs)
                elif (owner := ref()) is not None:
                    returned = call(owner, *args, **kwargs)
                else:
                    continue
                if returned is not None:
                    last = returned
            except Exception as error:
                if is_users(error):
                    raise
                _log.exception("trueline: a listener on %s failed and was dropped", self._call_name)
                self._entries = tuple(entry for entry in self._entries if entry[0] is not listener)
                self.choose()
        return last


def _call_of(listener: _Listener) -> Callable[..., Any] | None:
    """The function, or the method of an object that is alive; None where that is gone."""
    ref, call = listener
    owner = None if ref is None else ref()
    return call if ref is None else None if owner is None else MethodType(call, owner)


class PatchedCall:
    """One attribute of a class or module, wrapped so that listeners are called with its arguments, before or after;
    those after it with what it returned in front, where it ``gives_result``.
    """

    def __init__(self, owner: Any, name: str, *, also: Any = None, gives_result: bool = False) -> None:
        self._patch = Patch(owner, name, self._giving if gives_result else self._notifying, also)
        self._before, self._after = _Listeners(name), _Listeners(name)

    def add(
        self, listener: Callable[..., None], *, after: bool = False, keep: bool = False, switch: Switch | None = None
    ) -> None:
        """Call ``listener(*args, **kwargs)`` before (or ``after``) every call from now on, while ``switch`` is on, as
        long as its object lives, which is ``keep`` for ever.
        """
        self._patch.install()
        (self._after if after else self._before).add(listener, keep=keep, switch=switch)

    def remove(self, listener: Callable[..., None]) -> None:
        """Stop calling ``listener``; the original comes back with the last one, if nobody patched over ours."""
        for listeners in (self._before, self._after):
            listeners.remove(listener)
        if not (self._before or self._after):
            self._patch.remove()

    @contextlib.contextmanager
    def unheard(self) -> Iterator[None]:
        """A block whose calls no listener is called for."""
        active = [(listeners, listeners.active) for listeners in (self._before, self._after)]
        for listeners, _ in active:
            listeners.active = ()
        try:
            yield
        finally:
            for listeners, listening in active:
                listeners.active = listening

    def _notifying(self, original: Function) -> Function:
        before, after = self._before, self._after  # closed over: two attribute reads less in every call of torch's

        def passing(*args: Any, **kwargs: Any) -> Any:
            if before.active and not _is_tracing():
                untraced(before.call, args, kwargs)
            result = original(*args, **kwargs)
            if after.active and not _is_tracing():
                untraced(after.call, args, kwargs)
            return result

        return passing

    def _giving(self, original: Function) -> Function:
        before, after = self._before, self._after

        def passing(*args: Any, **kwargs: Any) -> Any:
            if before.active and not _is_tracing():
                untraced(before.call, args, kwargs)
            result = original(*args, **kwargs)
            if after.active and not _is_tracing():
                untraced(after.call, (result, *args), kwargs)
            return result

        return passing


class UpdateCalls:
    """Listeners that are called with every optimizer whose update begins (or ended), its arguments and keyword
    arguments, by one hook of torch's in front of the user's, which stays: a hook may take itself off while torch goes
    through them only if none stands behind it. What a listener returns, if anything, torch takes for the arguments.
    """

    def __init__(self, register: Callable[[Any], Any], hooks: OrderedDict[int, Any], name: str) -> None:
        self._register, self._hooks = register, hooks
        self._listeners = _Listeners(name)
        self._hook: Hook | None = None

    def add(self, listener: Callable[..., Any], *, keep: bool = False, switch: Switch | None = None) -> None:
        """Call ``listener`` from now on, while ``switch`` is on, as long as its object lives, which is ``keep`` for
        ever.
        """
        # a test or a framework may have cleared torch's table of hooks
        if self._hook is None or all(hook is not self._hook for hook in self._hooks.values()):
            self._hook = Hook(self._notify)
            self._hooks.move_to_end(self._register(self._hook).id, last=False)
        self._listeners.add(listener, keep=keep, switch=switch)

    def remove(self, listener: Callable[..., Any]) -> None:
        """Stop calling ``listener``."""
        self._listeners.remove(listener)

    def _notify(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._listeners.call((optimizer, args, kwargs), {})


def _warning_of_others(original: Function) -> Function:
    """Torch's warning that hooks of a tensor are lost as it is pickled, which reads their table twice and once for each
    of them: a mode that counts calls sees these reads, so there are as many as without our hooks.
    """

    def warn_if_has_hooks(tensor: torch.Tensor) -> None:
        users_hooks = [hook for hook in (tensor._backward_hooks or {}).values() if not is_ours(hook)]
        if users_hooks:
            for _ in range(1 + len(users_hooks)):
                tensor._backward_hooks  # noqa: B018
            # tensor subclasses would see one more call than without us
            with torch._C.DisableTorchFunction():
                original(tensor)

    return warn_if_has_hooks


serialising = Patch(torch.utils.hooks, "warn_if_has_hooks", _warning_of_others)

update_begins = UpdateCalls(
    torch_optimizer.register_optimizer_step_pre_hook, torch_optimizer._global_optimizer_pre_hooks, "an update"
)
update_ended = UpdateCalls(
    torch_optimizer.register_optimizer_step_post_hook, torch_optimizer._global_optimizer_post_hooks, "an update's end"
)
backward = PatchedCall(torch.autograd, "backward")
scale = PatchedCall(torch.amp.GradScaler, "scale")
scaler_step = PatchedCall(torch.amp.GradScaler, "step")
average = PatchedCall(torch.optim.swa_utils.AveragedModel, "update_parameters")
schedules = tuple(
    PatchedCall(scheduler, "step") for scheduler in (LRScheduler, CosineAnnealingWarmRestarts, ReduceLROnPlateau)
)
"""The ``step`` of every scheduler of torch; those that hold others (chained, in sequence) call that of these."""
loader_iter = PatchedCall(DataLoader, "__iter__")
loader_iterator = PatchedCall(_BaseDataLoaderIter, "__init__")
"""Calls of ``(iterator, loader)``, as an iterator over a loader is made."""
destroy_groups = PatchedCall(torch.distributed, "destroy_process_group")
seed = PatchedCall(torch, "manual_seed", also=torch.random)
"""Seeds the global generators of host and devices."""
rng_set = PatchedCall(torch, "set_rng_state", also=torch.random)
"""``torch.random.fork_rng`` ends with it."""
module_call = PatchedCall(torch.nn.Module, "__call__")
_deepspeeds: list[PatchedCall] = []


def scales() -> list[PatchedCall]:
    """Calls of ``(scaler, loss)`` that multiply a loss by the scale that float16 needs, of torch and, where it is
    imported, of DeepSpeed.
    """
    module = sys.modules.get("deepspeed.runtime.fp16.loss_scaler")
    if module is not None and not _deepspeeds:
        _deepspeeds.append(PatchedCall(module.LossScalerBase, "scale_loss"))
    return [scale, *_deepspeeds]


clips = (
    PatchedCall(torch.nn.utils.clip_grad, "_clip_grads_with_norm_"),
    PatchedCall(torch.nn.utils, "clip_grads_with_norm_"),
)
"""Calls of ``(parameters, max_norm, total_norm)`` that clip: by ``clip_grad_norm_``, which looks its parts up when it
is called, whatever name a script has for it, and the public one.
"""
norms = (
    PatchedCall(torch.nn.utils.clip_grad, "_get_total_norm"),
    PatchedCall(torch.nn.utils, "get_total_norm"),
)
"""Calls of ``(tensors, norm_type)`` that compute the norm for these."""

optimizer_init = PatchedCall(torch.optim.Optimizer, "__init__")
loader_init = PatchedCall(DataLoader, "__init__")
sampler_init = PatchedCall(DistributedSampler, "__init__")
zero_grads = (PatchedCall(torch.optim.Optimizer, "zero_grad"), PatchedCall(torch.nn.Module, "zero_grad"))
module_eval = PatchedCall(torch.nn.Module, "eval")
module_load = PatchedCall(torch.nn.Module, "load_state_dict", gives_result=True)
file_load = PatchedCall(torch, "load", also=torch.serialization, gives_result=True)
ddp_init = PatchedCall(torch.nn.parallel.DistributedDataParallel, "__init__")
reductions = tuple(
    PatchedCall(torch.distributed.ProcessGroup, name)
    for name in ("allreduce", "reduce", "allreduce_coalesced")
    if torch.distributed.is_available()
)
"""Calls of ``(group, tensors, options)`` by which Python code adds tensors up over ranks, whatever name it has for the
function of ``torch.distributed`` that it calls.
"""
