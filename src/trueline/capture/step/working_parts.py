"""The parts that watch one model, and those that still work: an exception of ours ends the part that it comes from, and
never training.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from threading import get_ident
from typing import ParamSpec, TypeVar, cast

from torch import nn

from trueline.capture.adapters.base import Adapter
from trueline.capture.job.safe_sink import SafeSink
from trueline.capture.model.failures import is_users
from trueline.capture.model.untraced import Unseen, are_functions_unseen, num_dispatch_modes
from trueline.capture.record.make_session import AnySession, Idle
from trueline.capture.step.exchange import Team
from trueline.capture.step.own_time import OwnTime
from trueline.schema.files.start import Start
from trueline.schema.plan import Plan

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Watching:
    """One watched ``model`` on this rank: in which ``team``, where gradients are seen, what to measure, and where that
    goes. ``plan`` is the one that watching begins with.
    """

    model: nn.Module
    adapter: Adapter
    team: Team
    plan: Plan
    start: Start
    safe_sink: SafeSink
    parts: WorkingParts


_recording: list[weakref.ref[WorkingParts]] = []
"""Parts of this process, one for each watched model that lives, whose session records: what Trueline computes for one
model must not be recorded by another.
"""


class WorkingParts:
    """The parts of watching of one model, by name. ``failed`` is called with the first exception of each, ``let_go``
    with its name. ``session`` records what the model computes, and nothing that Trueline computes.
    """

    def __init__(self, failed: Callable[[str, Exception], None]) -> None:
        self.time = OwnTime()
        self._session: AnySession = Idle()
        self.let_go: Callable[[str], object] = str
        self._failed = failed
        self._ended: set[str] = set()
        self._inside: set[int] = set()

    @property
    def session(self) -> AnySession:
        """The Session that records the model, or an Idle one."""
        return self._session

    @session.setter
    def session(self, session: AnySession) -> None:
        self._session = session
        self.close()
        if type(session) is not Idle:
            _recording.append(weakref.ref(self))

    def works(self, part: str) -> bool:
        """True if no exception has ended it."""
        return part not in self._ended

    def end(self, part: str, error: Exception | None = None) -> None:
        """Do without ``part`` from now on, because of an exception of Trueline's, if any. Raises one of the user's (see
        ``is_users``).
        """
        if error is not None and is_users(error):
            raise error
        if part in self._ended:
            return
        self._ended.add(part)
        with suppress(Exception):
            self.let_go(part)
        if error is not None:
            with suppress(Exception):
                self._failed(part, error)

    def guarded(self, part: str) -> AbstractContextManager[None]:
        """Count the CPU time inside as Trueline's, and turn an exception into a Finding: training goes on."""
        return _OwnCode(self, part)

    def timed(self) -> AbstractContextManager[None]:
        """Count the CPU time inside as Trueline's, once for each thread (the result of a comm hook is measured in a
        thread of gloo or NCCL), and record nothing that is computed inside.
        """
        return _OwnCode(self, "")

    def attempt(self, part: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Returns what ``call`` does; an exception ends ``part``, and is None. For what is timed already."""
        try:
            return call(*args, **kwargs)
        except Exception as error:
            self.end(part, error)
        return None

    def close(self) -> None:
        """Watching of the model has ended."""
        _recording[:] = [ref for ref in _recording if ref() not in (None, self)]


class _OwnCode:
    """Times what is Trueline's in the outermost of a thread, and lets no session and no mode see it; where the code
    inside raises, ends ``part``, if it has a name. A class, as every step enters several: a generator of ``contextlib``
    takes several times as long.
    """

    __slots__ = ("_begin", "_part", "_parts", "_sessions", "_thread", "_unseen")

    def __init__(self, parts: WorkingParts, part: str) -> None:
        self._parts, self._part = parts, part

    def __enter__(self) -> None:
        parts, thread = self._parts, get_ident()
        inside = parts._inside
        if thread in inside:
            self._thread = None
            return
        inside.add(thread)
        self._thread = thread
        self._begin = parts.time.cpu_s()
        # Before the modes come off: a pause takes off a session's own mode where it is the innermost.
        self._sessions = _paused() if _recording else ()
        if num_dispatch_modes() or not are_functions_unseen():
            self._unseen = Unseen()
            self._unseen.__enter__()
        else:
            self._unseen = None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if self._thread is None and error is None:
            return False
        try:
            if error is None or not self._part or is_users(error):
                return False
            self._parts.end(self._part, cast("Exception", error))
            return True
        finally:
            if self._thread is not None:
                self._leave()

    def _leave(self) -> None:
        parts = self._parts
        if self._unseen is not None:
            self._unseen.__exit__(None, None, None)
        for session in self._sessions:
            session.resume()
        parts._inside.discard(cast("int", self._thread))
        parts.time.add(parts.time.cpu_s() - self._begin)


def _paused() -> list[AnySession]:
    """The sessions that record, paused."""
    sessions = [parts.session for ref in _recording if (parts := ref()) is not None]
    for session in sessions:
        session.pause()
    return sessions
