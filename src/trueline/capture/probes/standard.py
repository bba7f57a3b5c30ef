"""The probes of every watched model: those that several laws share, and those of each law."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from trueline.capture.declared_averages import Average
from trueline.capture.probes.arguments import ArgumentProbe
from trueline.capture.probes.base import Probe
from trueline.capture.probes.batch import BatchProbe
from trueline.capture.probes.dataloader import EpochProbe
from trueline.capture.probes.evaluations import EvaluationProbe
from trueline.capture.probes.exact_cosines import ExactCosineProbe
from trueline.capture.probes.gradients import GradientProbe
from trueline.capture.probes.losses.loss import LossProbe
from trueline.capture.probes.losses.loss_scaler import LossScalerProbe
from trueline.capture.probes.losses.sample_losses import SampleLossProbe
from trueline.capture.probes.own_draws import OwnDrawProbe
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.probes.surroundings import (
    AveragingProbe,
    ModeProbe,
    OptimizerProbe,
    StreamProbe,
    SurroundingsProbe,
)
from trueline.capture.step.passes import Contributions
from trueline.capture.step.working_parts import Watching
from trueline.schema.columns.table import column_names
from trueline.schema.errors import CaptureError
from trueline.schema.law import broken_laws, installed_laws, not_loaded


class StandardProbes:
    """``each`` in the order in which they are asked, and by name those that the script itself gives something to.
    ``contributions`` follow which passes are a step's own, ``averages`` are those that are declared.
    """

    def __init__(self, watching: Watching, averages: Sequence[Average] = ()) -> None:
        adapter, team, guard = watching.adapter, watching.team, watching.parts.guarded
        self.contributions = contributions = Contributions()
        contributions.listen(guard)
        self.epoch = EpochProbe()
        self.loss = LossProbe(adapter.notes, workers=team.size, guard=guard, passes=contributions)
        self.scaler = LossScalerProbe()
        self.evaluations = EvaluationProbe(guard)
        gradients = GradientProbe(adapter, guard)
        self.probes: list[Probe] = [
            self.epoch,
            SurroundingsProbe(by_hand=adapter.reduces_by_hand, goes_round=adapter.goes_round),
            ModeProbe(adapter.notes, contributions),
            AveragingProbe(),
            BatchProbe(contributions),
            ArgumentProbe(contributions),
            self.loss,
            SampleLossProbe(adapter.notes, self.loss, contributions),
            OptimizerProbe(),
            StreamProbe(),
            OwnDrawProbe(guard),
            self.evaluations,
            gradients,
            ExactCosineProbe(gradients, team),
            self.scaler,
        ]
        parts = ProbeParts(watching, contributions, averages)
        for part, make in probe_makers().items():
            probe = watching.parts.attempt(part, make, parts)
            self.probes += [] if probe is None else [probe]

    def detach(self) -> None:
        """Stop listening to what torch is called with."""
        self.contributions.detach()
        for probe in self.probes:
            detach = getattr(probe, "detach", None)
            if detach is not None:
                detach()


@cache
def probe_makers() -> Mapping[str, Callable[[ProbeParts], Probe]]:
    """What makes the probes of all laws, by the name under which a failure is told; of a broken law one that fails."""
    modules = [f"{law.package}.{name}" for law in installed_laws() for name in law.probes]
    broken = {f"law {law.name}": _failing(law.reason) for law in broken_laws()}
    return {f"probe of {module}": _maker(module) for module in modules} | broken


def _maker(module: str) -> Callable[[ProbeParts], Probe]:
    """``make_probe`` of the module; what raises ``CaptureError``, where another package's cannot be imported."""
    try:
        return importlib.import_module(module).make_probe
    except (Exception, SystemExit) as error:  # as a training that imports Trueline may not end with it
        return _failing(not_loaded(module, error))


def _failing(reason: str) -> Callable[[ProbeParts], Probe]:
    def fail(parts: ProbeParts) -> Probe:
        raise CaptureError(reason)

    return fail


# With this module, as all other imports of watching, not while a job waits for its first step.
probe_makers()
column_names()
