"""The time that watching costs training, for each step on this rank, and on the rank where it costs most.

It is the CPU time of Trueline's code in all threads, and wall time where that code blocks. Waiting for a core is not
counted: on a busy host it is most of the wall time, and training would wait as long without Trueline.
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
    """The number of voluntary context switches of this thread; None where the system does not count them."""
    return None if RUSAGE_THREAD is None else getrusage(RUSAGE_THREAD).ru_nvcsw


class OwnTime:
    """Adds up the time of watching between the ends of two steps. ``cpu_s`` is a clock of thread time, ``wall_s`` one
    of wall time, ``blocked`` counts voluntary context switches.
    """

    def __init__(
        self,
        *,
        cpu_s: Callable[[], float] = time.thread_time,
        wall_s: Callable[[], float] = time.perf_counter,
        blocked: Callable[[], int | None] = blocked_count,
    ) -> None:
        self.latest: dict[str, float] = {"plain": 0.0, "sampled": 0.0, "step_s": 0.0}
        """Seconds that watching used in the latest plain and sampled step, and of the latest step as a whole (0: none
        yet), as this rank sends them to the others.
        """
        self.cpu_s = cpu_s
        self._wall_s = wall_s
        self._blocked = blocked
        self._own_s = 0.0
        self._ended_at = wall_s()

    def add(self, seconds: float) -> None:
        """Add CPU time of the calling thread, in s by ``cpu_s``, that watching used in this step."""
        self._own_s += seconds

    @contextlib.contextmanager
    def may_block(self) -> Iterator[None]:
        """Add the wall time inside that is no CPU time, if the thread blocked meanwhile (a voluntary context switch) on
        a disk, a device or another rank. A thread that was only preempted did not wait for Trueline.
        """
        cpu_s, wall_s, blocked = self.cpu_s(), self._wall_s(), self._blocked()
        try:
            yield
        finally:
            if blocked is None or self._blocked() != blocked:
                self.add(max(self._wall_s() - wall_s - (self.cpu_s() - cpu_s), 0.0))

    def end_step(self, *, sampled: bool) -> dict[str, float]:
        """The columns ``step_s`` and ``own_s`` of the step that ends here."""
        now = self._wall_s()
        own_s, step_s = self._own_s, now - self._ended_at
        self._own_s, self._ended_at = 0.0, now
        self.latest["sampled" if sampled else "plain"] = own_s
        self.latest["step_s"] = step_s
        return {"step_s": step_s, "own_s": own_s}


def worst(scalars: shared_columns.Array) -> dict[str, float]:
    """The highest cost of watching and the shortest step among all ranks' ``scalars`` (``shared_columns``), as
    arguments of ``Schedule.spent``.
    """
    plain, sampled, step = (scalars[:, shared_columns.SCALARS.index(name)] for name in ("plain", "sampled", "step_s"))
    return {"plain_s": float(plain.max()), "sampled_s": float(sampled.max()), "step_s": float(step.min())}
