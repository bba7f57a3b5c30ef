"""Where rollouts are written: into the Run of what this process watches, or into a Run of their own."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable

from trueline.capture import watch
from trueline.schema.columns.rollouts import TableRows
from trueline.schema.errors import RunError, TruelineError
from trueline.schema.roles import Sink
from trueline.schema.text.reading import why

_log = logging.getLogger("trueline")

OpenRun = Callable[[str, int], Sink]
"""Opens a Run of its own for rollouts at a path, for a rank; whoever knows ``store`` hands it in."""


class Place:
    """Takes rows, and never raises for what befalls them: a warning says it once, and training goes on."""

    def __init__(self, open_run: OpenRun) -> None:
        self._open_run = open_run
        self._lock = threading.Lock()
        self._own: Sink | None = None
        self._path = ""
        self._failed = False

    @property
    def path(self) -> str:
        """Where the Run of its own is; '' as long as there is none."""
        return self._path

    def write(self, make: Callable[[], TableRows], out: str) -> bool:
        """Write the rows that ``make`` makes; whether they were taken."""
        if self._failed:
            return False
        try:
            rows = make()
            with self._lock:
                self._sink(out).write(rows)
        except TruelineError as error:
            self._failed = isinstance(error, RunError)
            _log.warning("trueline: rollouts were not recorded: %s", error)
            return False
        except Exception as error:
            self._failed = not isinstance(error, (ValueError, TypeError))
            rest = "No more are recorded; training goes on." if self._failed else "Training goes on."
            _log.warning("trueline: rollouts were not recorded: %s: %s. %s", type(error).__name__, why(error), rest)
            return False
        return True

    def close(self) -> None:
        """Seal the Run of its own, if there is one; the next rows begin another."""
        with self._lock:
            sink, self._own, self._failed = self._own, None, False
            if sink is not None:
                try:
                    sink.close()
                except OSError as error:
                    _log.warning("trueline: the last rollouts could not be written: %s", error)

    def forget(self) -> None:
        """In a fork: the Run is its parent's."""
        self._own = None
        self._lock = threading.Lock()

    def _sink(self, out: str) -> Sink:
        """Of several models that are watched, the first that was: the policy."""
        watched = watch.watched_sink()
        if watched is not None:
            return watched
        if self._own is None:
            self._path = out
            self._own = self._open_run(out, _rank())
            atexit.register(self.close)
        return self._own


def _rank() -> int:
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0
