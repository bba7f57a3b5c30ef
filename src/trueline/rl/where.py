"""Destinations of rollouts: the Run of what this process watches, or a Run of their own."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable

from trueline.capture import child_env, watch
from trueline.schema.columns.rollouts import TableRows
from trueline.schema.errors import TruelineError
from trueline.schema.roles import Sink
from trueline.schema.safe_logger import SafeLogger
from trueline.schema.text.reading import why

_log = SafeLogger()

MAX_WAITING = 64
"""Most batches that are held until a model is watched."""

OpenRun = Callable[[str, int], Sink]
"""Opens a Run of its own for rollouts at a path, for a rank; whoever knows ``store`` hands it in."""


class Destination:
    """Takes rows, and never raises for what befalls them: a warning says it once, and training goes on. Below
    ``trueline run`` they wait for a model that is watched if it ``waits``.
    """

    def __init__(self, open_run: OpenRun, *, waits: bool = True) -> None:
        self._open_run, self._waits = open_run, waits
        self._lock = threading.Lock()
        self._own_sink: Sink | None = None
        self._waiting: list[TableRows] = []
        self._warned = set[str]()
        self._path = ""
        self._failed = False

    @property
    def path(self) -> str:
        """Path of the Run of its own; '' as long as there is none."""
        return self._path

    def write(self, make: Callable[[], TableRows], path: str) -> bool:
        """Write the rows that ``make`` makes; whether they were taken."""
        if self._failed:
            return False
        try:
            rows = make()
        except TruelineError as error:
            return self._refused(str(error))
        except (ValueError, TypeError) as error:
            return self._refused(f"{type(error).__name__}: {why(error)}.")
        except Exception as error:
            return self._fails(f"{type(error).__name__}: {why(error)}.")
        try:
            with self._lock:
                self._take(rows, path)
        except TruelineError as error:
            return self._fails(str(error))
        except Exception as error:
            return self._fails(f"{type(error).__name__}: {why(error)}.")
        return True

    def close(self) -> None:
        """Seal the Run of its own, if there is one; the next rows begin another."""
        with self._lock:
            try:
                if self._waiting:
                    self._hand_on(self._sink(self._path))
                if self._own_sink is not None:
                    self._own_sink.close()
            except (OSError, TruelineError) as error:
                _log.warning("trueline: the last rollouts could not be written: %s", error)
            self._own_sink, self._failed, self._waiting = None, False, []

    def _refused(self, says: str) -> bool:
        """Say of a batch why it is not taken, each reason once."""
        if says not in self._warned:
            self._warned.add(says)
            _log.warning("trueline: rollouts were not recorded: %s Training goes on.", says)
        return False

    def _fails(self, says: str) -> bool:
        """Say it once: no more rows are taken."""
        self._failed = True
        _log.warning("trueline: rollouts were not recorded: %s No more are recorded; training goes on.", says)
        return False

    def forget(self) -> None:
        """Let go of the Run in a fork, where it is the parent's."""
        self._own_sink, self._waiting = None, []
        self._lock = threading.Lock()

    def _take(self, rows: TableRows, path: str) -> None:
        """Below ``trueline run`` a model is watched from its first call on: what comes before is held until then."""
        self._waiting.append(rows)
        waits = self._waits and self._own_sink is None and child_env.RUN in os.environ and watch.watched_sink() is None
        if not waits or len(self._waiting) > MAX_WAITING:
            self._hand_on(self._sink(path))
        elif not self._path:
            self._path = path
            atexit.register(self.close)

    def _hand_on(self, sink: Sink) -> None:
        rows, self._waiting = self._waiting, []
        for batch in rows:
            sink.write(batch)

    def _sink(self, path: str) -> Sink:
        """Sink of the Run to write to; of several watched models the first, which is the policy."""
        watched = watch.watched_sink()
        if watched is not None:
            return watched
        if self._own_sink is None:
            self._own_sink = self._open_run(path, _rank())
            if not self._path:
                atexit.register(self.close)
            self._path = path
        return self._own_sink


def _rank() -> int:
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0
