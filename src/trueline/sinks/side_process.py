"""Starts the process that judges a Run while it is written, and hears from it: log, callbacks, and the end.

All of that is in a process and in threads of their own: nothing here is called by training but ``start`` and
``Beside.finish``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trueline.schema.finding import Finding
from trueline.schema.live import Callback, Event, FindingVerdict, Numbers, headline
from trueline.schema.plan import OnFinding
from trueline.schema.safe_logger import SafeLogger
from trueline.schema.text.reading import why

_log = SafeLogger()

FINISH_S = 20.0
"""Seconds that the end of a job waits at most for the last look and for sinks to take what it finds."""


@dataclass(frozen=True)
class Settings:
    """What the training process asks for: of which Run, from which step on, where it goes, and what a finding does."""

    run: str
    first: int
    sinks: tuple[str, ...]
    on_finding: OnFinding | None
    when_steps: int
    sends_numbers: bool


def start(settings: Settings, callbacks: Sequence[Callback]) -> SideProcess | None:
    """The process beside this one; None where it cannot be started: one warning says why, and training goes on."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TRUELINE_")}
    paths = [path for path in sys.path if path]
    environ |= {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    words = [sys.executable, "-P", "-m", "trueline.sinks.attached"]
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
            text=True,
            encoding="utf-8",
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(dataclasses.asdict(settings)) + "\n")
        process.stdin.flush()
    except (OSError, ValueError) as error:
        _log.warning("trueline: no finding is reported while the job runs: %s", why(error))
        return None
    return SideProcess(process, settings.run, callbacks, logs=settings.on_finding is not None)


class SideProcess:
    """The process beside a training. A thread hears from it."""

    def __init__(self, process: subprocess.Popen[str], run: str, callbacks: Sequence[Callback], *, logs: bool) -> None:
        self._process, self._run = process, run
        self._verdicts: list[FindingVerdict] = []
        self._listeners: list[Callable[[FindingVerdict], None]] = []
        self._listening = threading.Lock()
        self._callbacks = [*callbacks]
        self._logs = logs
        self._ends = False
        self._thread = threading.Thread(target=self._hear, name="trueline-sinks", daemon=True)
        self._thread.start()

    def listen(self, listener: Callable[[FindingVerdict], None]) -> None:
        """Hand each finding to ``listener``, which must not wait: those that came before first."""
        with self._listening:
            for verdict in self._verdicts:
                listener(verdict)
            self._listeners.append(listener)

    def finish(self) -> None:
        """Say that the Run is closed, and wait a little for what the last look finds."""
        self._ends = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write("end\n")
            self._process.stdin.close()
        self._thread.join(FINISH_S)
        if self._thread.is_alive():
            _log.warning(
                "trueline: process %s still judges the Run, or a callback hangs: what is found now goes to sinks only.",
                self._process.pid,
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                _log.debug("trueline: a line of the process beside training cannot be read: %s", error)
        if not self._ends:
            _log.warning(
                "trueline: the process that feeds the sinks has ended: nothing more is reported until the end."
            )

    def _take(self, document: dict[str, object]) -> None:
        kind = document["kind"]
        if kind == "say":
            _log.warning("trueline: %s", document["text"])
            return
        event: Event
        if kind == "numbers":
            event = Numbers(int(str(document["step"])), document["values"])  # type: ignore[arg-type]
        else:
            event = Finding.from_json(document)
            if self._logs:
                _log.warning("trueline: %s", headline(event))
            last_clean = document.get("last_clean_step")
            verdict = FindingVerdict(self._run, event, None if last_clean is None else int(str(last_clean)))
            with self._listening:
                self._verdicts.append(verdict)
                for listener in self._listeners:
                    listener(verdict)
        for callback in [*self._callbacks]:
            try:
                callback(event)
            except Exception as error:  # the user's own code, in a thread that nobody sees
                self._callbacks.remove(callback)
                name = getattr(callback, "__name__", type(callback).__name__)
                problem = f"{type(error).__name__}: {why(error)}"
                _log.warning("trueline: callback '%s' is not called again, as it raised %s", name, problem)
