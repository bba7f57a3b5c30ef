"""The few early steps at which a probe looks at the gradients of whole weights."""

from __future__ import annotations

from trueline.capture.probes.base import Step

FIRST, LOOKS = 2, 8
"""Age of the first step that is looked at, and steps in all: each is at least half as old again as the one before.
What begins with a gate of 0 has no gradient at the first step of all.
"""


class EarlyLooks:
    """Says of each step whether a probe looks there; ``num_left`` are looks still to be made."""

    def __init__(self) -> None:
        self.num_left, self._next_age = LOOKS, FIRST

    def is_due(self, step: Step) -> bool:
        return self.num_left > 0 and step.age >= self._next_age and step.sampled and step.watched

    def took(self, step: Step) -> None:
        """The look of ``step`` was made."""
        self.num_left -= 1
        self._next_age = max(step.age + 1, step.age * 3 // 2)

    def stop(self) -> None:
        """Make none any more."""
        self.num_left = 0
