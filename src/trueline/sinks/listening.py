"""Calls a function of the user's with each finding of a job, in a thread of its own: in the process that trains, or in
a controller, which knows the place of the Run alone.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Collection, Sequence
from typing import Any

from trueline.schema import live
from trueline.schema.finding import Severity
from trueline.schema.live import FindingVerdict, VerdictCallback
from trueline.schema.safe_logger import SafeLogger
from trueline.schema.text.reading import why
from trueline.sinks.side_process import Settings, SideProcess, start

_log = SafeLogger()

ROOM = 256
"""Verdicts that wait for a callback; further ones are dropped."""

PATIENCE_S = 5.0
"""Seconds that the end of a job waits at most for a callback to return from what was found last."""


class Listening:
    """What ``trueline.on_finding`` returns: ``close()`` ends it, and so does leaving it as a context manager. What the
    callback raises is said in the log; it is called again with what is found next.
    """

    def __init__(self, callback: VerdictCallback, severities: Collection[Severity]) -> None:
        self._callback, self._severities = callback, frozenset(severities)
        self._process: SideProcess | None = None
        self._name = getattr(callback, "__name__", type(callback).__name__)
        self._waiting: queue.Queue[FindingVerdict | threading.Event | None] = queue.Queue(ROOM)
        self._num_lost = 0
        self._thread = threading.Thread(target=self._work, name="trueline-on-finding", daemon=True)
        self._thread.start()

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, verdict: FindingVerdict) -> None:
        """Call back, as soon as the callback has returned from what came before; who calls this never waits."""
        if verdict.severity not in self._severities:
            return
        try:
            self._waiting.put_nowait(verdict)
        except queue.Full:
            self._num_lost += 1
            if self._num_lost == 1:
                _log.warning("trueline: callback '%s' hangs: further findings do not reach it.", self._name)

    def flush(self) -> None:
        """Wait a little until the callback has returned from all that came."""
        done = threading.Event()
        try:
            self._waiting.put_nowait(done)
        except queue.Full:
            return
        if not done.wait(PATIENCE_S):
            _log.warning("trueline: callback '%s' hangs: the job does not wait for it.", self._name)

    def close(self) -> None:
        """Call back no more. Of a Run that this follows from outside, look once more before; wait a little."""
        _registered.pop(self, None)
        process, self._process = self._process, None
        if process is not None:
            process.finish()
        self.flush()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(PATIENCE_S)

    def follow(self, run: str) -> None:
        """Judge the Run at ``run``, which need not have begun, in a process beside this one until ``close``."""
        asked = Settings(run, first=0, sinks=(), on_finding=None, when_steps=0, sends_numbers=False)
        self._process = start(asked, [])
        if self._process is not None:
            self._process.listen(self.take)

    def _work(self) -> None:
        while (verdict := self._waiting.get()) is not None:
            if isinstance(verdict, threading.Event):
                verdict.set()
                continue
            try:
                self._callback(verdict)
            except BaseException as error:  # the user's own code, in a thread that nobody sees: SystemExit too
                problem = f"{type(error).__name__}: {why(error)}"
                _log.warning("trueline: callback '%s' raised %s; training goes on.", self._name, problem)


_registered: dict[Listening, None] = {}
"""Callbacks of this process, which are for all that it trains, in order."""

_open: weakref.WeakKeyDictionary[Any, tuple[Settings, SideProcess | None]] = weakref.WeakKeyDictionary()
"""By Watch of this process what was asked of its Run, and the process that judges it, None where nobody asked yet."""


def listen(callback: VerdictCallback, severities: Collection[Severity]) -> Listening:
    """Have ``callback`` told of all that this process trains, or trains already."""
    listening = Listening(callback, severities)
    _registered[listening] = None
    for watch, (settings, process) in [*_open.items()]:
        if process is None:
            _begin(watch, settings, ())
        else:
            process.listen(listening.take)
    return listening


def report(watch: Any, settings: Settings, callbacks: Sequence[live.Callback]) -> None:
    """Have a process beside this one judge the Run of ``watch`` while it is written, if somebody asks for it: sinks,
    the Plan, ``callbacks``, or a callback of ``listen``, now or later.
    """
    _open[watch] = (settings, None)
    ended = weakref.ref(watch)  # else a cycle holds it until garbage is collected
    watch.after_close(lambda: _open.pop(ended(), None))
    if settings.sinks or settings.on_finding or callbacks or _registered:
        _begin(watch, settings, callbacks)


def _begin(watch: Any, settings: Settings, callbacks: Sequence[live.Callback]) -> None:
    process = start(settings, callbacks)
    if process is None:
        return
    _open[watch] = (settings, process)
    for listening in _registered:
        process.listen(listening.take)

    def end() -> None:
        process.finish()
        for listening in [*_registered]:
            listening.flush()

    watch.after_close(end)
