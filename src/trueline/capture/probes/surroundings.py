"""What surrounds the forward pass of a rank: autocast, and whether ranks exchange tensors within it."""

from __future__ import annotations

from typing import Any

from trueline.capture.job.environment import autocast_state
from trueline.capture.model.world import collectives_started
from trueline.capture.probes.base import FactProbe, Moment, Step

LOOKS = 3
"""Forward passes at the start of training in which collectives are looked for."""


class SurroundingsProbe(FactProbe):
    """The facts ``autocast`` and, where the user's own code reduces (``by_hand``), ``talks_in_forward``."""

    name = "surroundings"
    moments = ("forward", "output")

    def __init__(self, *, by_hand: bool) -> None:
        self._looks_left = LOOKS if by_hand else 0
        self._before = 0

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """No columns."""
        if moment == "forward":
            step.facts["autocast"] = autocast_state()
        if self._looks_left > 0:
            started = collectives_started()
            if moment == "forward":
                self._before = started
            else:
                self._looks_left -= 1
                step.facts["talks_in_forward"] = step.facts.get("talks_in_forward", False) or started > self._before
        return {}
