"""Record the learning rates that the optimizer of the first update was made with."""

from __future__ import annotations

from trueline.capture.probes.base import FactProbe, Moment, Step
from trueline.capture.probes.constructed_rates import constructed_rates
from trueline.capture.probes.parts import ProbeParts


class MadeProbe(FactProbe):
    """The column ``rates_made``, at the first update, where the script named a rate as it made the optimizer."""

    name = "rates of the optimizer as it was made"
    moments = ("update",)
    between = None

    def begin(self, step: Step) -> bool:
        return step.watched and step.age == 0

    def take(self, moment: Moment, step: Step) -> dict[str, list[float]]:
        if step.optimizer is None or not constructed_rates.listens:
            return {}
        return {"rates_made": constructed_rates.of(step.optimizer)}


def make_probe(parts: ProbeParts) -> MadeProbe:
    """The probe of rates for one watched model."""
    del parts
    return MadeProbe()
