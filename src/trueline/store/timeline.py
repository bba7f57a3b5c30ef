"""Which start of the job (*attempt*, counted from 0) owns which steps of a Run.

A start resumes from a checkpoint, so it may repeat steps that the start before had recorded. It owns all steps from its
first one on: what earlier starts recorded of these stays on disk and is not read. That holds as soon as it has finished
a step, so a start that fails at once hides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Timeline:
    """The first step of each start, and which of them wrote rows."""

    first_steps: Sequence[int] = ()
    attempts_with_rows: Collection[int] = ()

    @property
    def restarts(self) -> list[int]:
        """The first steps, ascending, of all starts but the first that still own steps."""
        later = [attempt for attempt in sorted(self.attempts_with_rows) if 0 < attempt < len(self.first_steps)]
        return [self.first_steps[attempt] for attempt in later if self._reaches(attempt)]

    def owns(self, attempt: int, step_T: np.ndarray) -> np.ndarray:
        """[T] bool: which of the steps that a start recorded no later one has repeated."""
        end = self._end(attempt)
        return np.ones(len(step_T), dtype=bool) if end is None else step_T < end

    def _reaches(self, attempt: int) -> bool:
        end = self._end(attempt)
        return end is None or self.first_steps[attempt] < end

    def _end(self, attempt: int) -> int | None:
        later = [
            self.first_steps[other_attempt]
            for other_attempt in self.attempts_with_rows
            if attempt < other_attempt < len(self.first_steps)
        ]
        return min(later, default=None)
