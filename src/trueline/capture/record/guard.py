"""Guards around all code of Trueline that runs inside hooks: an exception ends recording, and training goes on."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import torch

from trueline.capture.model.failures import is_users


class Fails(Protocol):
    """An object that takes an exception in its own code."""

    def fail(self, error: Exception) -> None:
        """Stop for good."""
        ...


_num_dispatch_modes = torch._C._len_torch_dispatch_stack  # type: ignore[attr-defined]
_FunctionsUnseen = torch._C.DisableTorchFunction


class Counts(Protocol):
    """An object whose CPU time counts as that of watching: ``_spend`` is told it, in s."""

    _monitors: bool
    _spending: bool
    _spend: Callable[[float], None]


SessionT = TypeVar("SessionT", bound=Counts)
ArgsP = ParamSpec("ArgsP")
ResultT = TypeVar("ResultT")


def counted(method: Callable[Concatenate[SessionT, ArgsP], ResultT]) -> Callable[Concatenate[SessionT, ArgsP], ResultT]:
    """A method of a session whose CPU time is counted where it monitors, once: a call inside of another is part of it.

    Other presets record what they were asked for at any cost, and their time is no part of the budget.
    """

    @functools.wraps(method)
    def run(self: SessionT, *args: ArgsP.args, **kwargs: ArgsP.kwargs) -> ResultT:
        if not self._monitors or self._spending:
            return method(self, *args, **kwargs)
        self._spending, begin = True, time.thread_time()
        try:
            return method(self, *args, **kwargs)
        finally:
            self._spending = False
            self._spend(time.thread_time() - begin)

    return run


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an object that ``Fails``, with the effect of ``Guard`` in a tenth of the time; it returns None where
    it raised.
    """

    @functools.wraps(method)
    def run(self: Fails, *args: Any) -> Any:
        if _num_dispatch_modes():
            with Guard(self):
                return method(self, *args)
            return None
        try:
            with _FunctionsUnseen():
                return method(self, *args)
        except Exception as error:
            if is_users(error):
                raise
            _fail(self, error)
        return None

    return run


class Guard:
    """Ends recording where Trueline's own code inside raises; training goes on. No mode on the stack sees that code."""

    __slots__ = ("_dispatch", "_function", "_session")

    def __init__(self, session: Fails) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._function = torch._C.DisableTorchFunction()
        self._function.__enter__()
        self._dispatch = torch._C._DisableTorchDispatch() if _num_dispatch_modes() else None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        self._dispatch = None
        self._function.__exit__(kind, error, trace)
        if error is None or is_users(error):
            return False
        _fail(self._session, error)
        return True


def _fail(session: Fails, error: BaseException) -> None:
    """Tell it, which may go wrong as well."""
    with contextlib.suppress(Exception):
        session.fail(cast("Exception", error))
