"""The time that watching takes of training, step by step on this rank, and of the worst rank."""

from __future__ import annotations

import time

from trueline.capture import derive


class OwnTime:
    """Counts what watching uses between the ends of two steps."""

    def __init__(self) -> None:
        self.latest: dict[str, float] = {"plain": 0.0, "sampled": 0.0, "step": 0.0}
        """Seconds of the latest plain and sampled step that watching used, and of the latest step as a whole (0: none
        yet): what this rank tells the others.
        """
        self._own_s = 0.0
        self._ended_at = time.perf_counter()

    def add(self, seconds: float) -> None:
        """Watching used so much in this step."""
        self._own_s += seconds

    def end_step(self, *, sampled: bool) -> dict[str, float]:
        """The step is over: columns ``step_s`` and ``own_s`` of its row."""
        now = time.perf_counter()
        own_s, step_s = self._own_s, now - self._ended_at
        self._own_s, self._ended_at = 0.0, now
        self.latest["sampled" if sampled else "plain"] = own_s
        self.latest["step"] = step_s
        return {"step_s": step_s, "own_s": own_s}


def worst(scalars: derive.Array) -> dict[str, float]:
    """Of what all ranks told (``derive.scalars``), the most that watching used and the shortest step, as
    ``Schedule.spent`` takes them.
    """
    plain, sampled, step = (scalars[:, derive.SCALARS.index(name)] for name in ("plain", "sampled", "step_s"))
    return {"plain_s": float(plain.max()), "sampled_s": float(sampled.max()), "step_s": float(step.min())}
