"""What watches one model, and which parts of it still work: an exception of ours ends the part that it comes from, and
never training.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from trueline.capture.adapters.base import Adapter
from trueline.capture.job.safe_sink import SafeSink
from trueline.capture.record.make_session import AnySession, Idle
from trueline.capture.step.exchange import Team
from trueline.capture.step.own_time import OwnTime
from trueline.schema.files.start import Start
from trueline.schema.plan import Plan


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


_here: list[WorkingParts] = []
"""All of this process, one for each watched model: what one computes must not be recorded by another."""


class WorkingParts:
    """The parts of watching of one model, by name. ``failed`` is called with the first exception of each, ``let_go``
    with its name. ``session`` records what the model computes, and nothing that Trueline computes.
    """

    def __init__(self, failed: Callable[[str, Exception], None]) -> None:
        self.time = OwnTime()
        self.session: AnySession = Idle()
        self.let_go: Callable[[str], object] = str
        self._failed = failed
        self._ended: set[str] = set()
        self._inside: set[int] = set()
        _here.append(self)

    def works(self, part: str) -> bool:
        """Whether no exception has ended it."""
        return part not in self._ended

    def end(self, part: str, error: Exception | None = None) -> None:
        """Do without ``part`` from now on, because of an exception of Trueline's, if any; never raises."""
        if part in self._ended:
            return
        self._ended.add(part)
        with contextlib.suppress(Exception):
            self.let_go(part)
        if error is not None:
            self._failed(part, error)

    @contextlib.contextmanager
    def guarded(self, part: str) -> Iterator[None]:
        """Count the CPU time inside as Trueline's, and turn an exception into a Finding: training goes on."""
        with self.timed():
            try:
                yield
            except Exception as error:
                self.end(part, error)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count the CPU time inside as Trueline's, once for each thread (the result of a comm hook is measured in a
        thread of gloo or NCCL), and record nothing that is computed inside.
        """
        thread = threading.get_ident()
        if thread in self._inside:
            yield
            return
        self._inside.add(thread)
        begin = self.time.cpu_s()
        sessions = [parts.session for parts in _here]
        for session in sessions:
            session.pause()
        try:
            yield
        finally:
            for session in sessions:
                session.resume()
            self._inside.discard(thread)
            self.time.add(self.time.cpu_s() - begin)

    def close(self) -> None:
        """Watching of the model has ended."""
        _here.remove(self)
