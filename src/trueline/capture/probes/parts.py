"""What the probe of a law is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from trueline.capture.adapters.base import Guard
from trueline.capture.declared_averages import Average
from trueline.capture.step.passes import Contributions
from trueline.capture.step.working_parts import Watching


@dataclass(frozen=True)
class ProbeParts:
    """``contributions`` follow which passes are a step's own; ``averages`` are those that the script declares."""

    watching: Watching
    contributions: Contributions
    averages: Sequence[Average] = ()

    @property
    def model(self) -> nn.Module:
        """The model that is watched, as the script wrapped it."""
        return self.watching.model

    @property
    def guard(self) -> Guard:
        """Guards what a listener of the probe does: what raises there ends the probe, and training goes on."""
        return self.watching.parts.guarded

    @property
    def rank(self) -> int:
        """The index of this rank among those that train the model together."""
        return self.watching.team.index
