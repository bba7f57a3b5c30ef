"""The probes of every watched model. A further one is added here, and nowhere else."""

from __future__ import annotations

from torch import nn

from trueline.capture.adapters.base import Adapter, Guard
from trueline.capture.probes.averaging import AveragingProbe
from trueline.capture.probes.base import Probe
from trueline.capture.probes.batch import BatchProbe
from trueline.capture.probes.dataloader import EpochProbe
from trueline.capture.probes.exact_cosines import ExactCosineProbe
from trueline.capture.probes.gradients import GradientProbe
from trueline.capture.probes.loss import LossProbe
from trueline.capture.probes.optimizer import OptimizerProbe
from trueline.capture.probes.replicas import ReplicaProbe
from trueline.capture.probes.sample_losses import SampleLossProbe
from trueline.capture.probes.streams import StreamProbe
from trueline.capture.probes.surroundings import SurroundingsProbe
from trueline.capture.step.contributions import Contributions
from trueline.capture.step.exchange import Team


class StandardProbes:
    """``each`` in the order in which they are asked, and by name those that the script itself gives something to."""

    def __init__(
        self, model: nn.Module, *, adapter: Adapter, team: Team, guard: Guard, contributions: Contributions
    ) -> None:
        self.epoch = EpochProbe()
        self.loss = LossProbe(adapter.notes, workers=team.size, guard=guard, passes=contributions)
        self._averaging = AveragingProbe()
        gradients = GradientProbe(adapter, guard)
        self.each: list[Probe] = [
            self.epoch,
            SurroundingsProbe(by_hand=adapter.name == "manual"),
            self._averaging,
            BatchProbe(contributions),
            self.loss,
            SampleLossProbe(adapter.notes, self.loss, contributions),
            OptimizerProbe(),
            ReplicaProbe(model),
            StreamProbe(),
            gradients,
            ExactCosineProbe(gradients, team),
        ]

    def detach(self) -> None:
        """Stop listening to what torch is called with."""
        self.epoch.loader.detach()
        self._averaging.detach()
        self.loss.detach()
