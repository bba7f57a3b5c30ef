"""The time that watching takes of training, step by step on this rank, and of the worst rank.

It is CPU time of the threads that our code runs in, and the rest of the wall time where our code blocks. Waiting for a
core is neither: on a busy host it is most of the wall time, and training would wait for the core as long without us.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from trueline.capture.step import shared_columns

try:
    from resource import RUSAGE_THREAD, getrusage
except ImportError:  # not on Linux
    RUSAGE_THREAD = None


def blocked_count() -> int | None:
    """How often this thread has given its core away by itself, to wait; None where the system does not count it."""
    return None if RUSAGE_THREAD is None else getrusage(RUSAGE_THREAD).ru_nvcsw


class OwnTime:
    """Counts what watching uses between the ends of two steps. ``cpu_s`` is the clock of a thread, ``wall_s`` that of
    the wall.
    """

    def __init__(
        self,
        *,
        cpu_s: Callable[[], float] = time.thread_time,
        wall_s: Callable[[], float] = time.perf_counter,
        blocked: Callable[[], int | None] = blocked_count,
    ) -> None:
        self.latest: dict[str, float] = {"plain": 0.0, "sampled": 0.0, "step_s": 0.0}
        """Seconds of the latest plain and sampled step that watching used, and of the latest step as a whole (0: none
        yet): what this rank sends to the others.
        """
        self.cpu_s = cpu_s
        self._wall_s = wall_s
        self._blocked = blocked
        self._own_s = 0.0
        self._ended_at = wall_s()

    def add(self, seconds: float) -> None:
        """Watching used so much in this step: CPU time of the calling thread, by ``cpu_s``."""
        self._own_s += seconds

    @contextlib.contextmanager
    def may_block(self) -> Iterator[None]:
        """Add the wall time inside that is no CPU time, if the thread gave its core away by itself meanwhile: for a
        disk, a device or another rank. One that only lost its core waited for nothing of ours.
        """
        cpu_s, wall_s, blocked = self.cpu_s(), self._wall_s(), self._blocked()
        try:
            yield
        finally:
            if blocked is None or self._blocked() != blocked:
                self.add(max(self._wall_s() - wall_s - (self.cpu_s() - cpu_s), 0.0))

    def end_step(self, *, sampled: bool) -> dict[str, float]:
        """The step is over: columns ``step_s`` and ``own_s`` of its row."""
        now = self._wall_s()
        own_s, step_s = self._own_s, now - self._ended_at
        self._own_s, self._ended_at = 0.0, now
        self.latest["sampled" if sampled else "plain"] = own_s
        self.latest["step_s"] = step_s
        return {"step_s": step_s, "own_s": own_s}


def worst(scalars: shared_columns.Array) -> dict[str, float]:
    """Of what all ranks sent (``shared_columns.scalars``), the most that watching used and the shortest step, as
    ``Schedule.spent`` takes them.
    """
    plain, sampled, step = (scalars[:, shared_columns.SCALARS.index(name)] for name in ("plain", "sampled", "step_s"))
    return {"plain_s": float(plain.max()), "sampled_s": float(sampled.max()), "step_s": float(step.min())}
