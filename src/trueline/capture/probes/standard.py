"""The probes of every watched model. A further one is added here, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from trueline.capture.probes.arguments import ArgumentProbe
from trueline.capture.probes.around_update.averages import Average, AverageProbe
from trueline.capture.probes.around_update.between_passes import BetweenPassesProbe
from trueline.capture.probes.around_update.clipping import ClippingProbe
from trueline.capture.probes.around_update.kept_gradients import KeptGradientProbe
from trueline.capture.probes.around_update.schedules import ScheduleProbe
from trueline.capture.probes.around_update.updates import UpdateProbe
from trueline.capture.probes.base import Probe
from trueline.capture.probes.batch import BatchProbe
from trueline.capture.probes.batch_norm import BatchNormProbe
from trueline.capture.probes.dataloader import EpochProbe
from trueline.capture.probes.evaluations import EvaluationProbe
from trueline.capture.probes.exact_cosines import ExactCosineProbe
from trueline.capture.probes.gradients import GradientProbe
from trueline.capture.probes.initial_values import InitialValueProbe
from trueline.capture.probes.inputs import InputProbe
from trueline.capture.probes.losses.influence import InfluenceProbe
from trueline.capture.probes.losses.loss import LossProbe
from trueline.capture.probes.losses.loss_scaler import LossScalerProbe
from trueline.capture.probes.losses.sample_losses import SampleLossProbe
from trueline.capture.probes.losses.target_places import TargetPlaceProbe
from trueline.capture.probes.losses.token_weights import TokenWeightProbe
from trueline.capture.probes.other_models import OtherModelProbe
from trueline.capture.probes.own_draws import OwnDrawProbe
from trueline.capture.probes.recomputation import RecomputationProbe
from trueline.capture.probes.replicas import ReplicaProbe
from trueline.capture.probes.surroundings import (
    AveragingProbe,
    ModeProbe,
    OptimizerProbe,
    StreamProbe,
    SurroundingsProbe,
)
from trueline.capture.step.passes import Contributions
from trueline.capture.step.working_parts import Watching


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
        self.each: list[Probe] = [
            self.epoch,
            SurroundingsProbe(
                by_hand=getattr(adapter, "reduces_by_hand", False), goes_round=getattr(adapter, "goes_round", None)
            ),
            ModeProbe(adapter.notes, contributions),
            AveragingProbe(),
            BatchProbe(contributions),
            ArgumentProbe(contributions),
            InputProbe(guard, contributions),
            self.loss,
            SampleLossProbe(adapter.notes, self.loss, contributions),
            OptimizerProbe(),
            ReplicaProbe(watching.model),
            InitialValueProbe(),
            StreamProbe(),
            OwnDrawProbe(guard),
            self.evaluations,
            OtherModelProbe(guard, watching.model),
            gradients,
            ExactCosineProbe(gradients, team),
            UpdateProbe(guard, rank=team.index),
            KeptGradientProbe(guard, rank=team.index),
            BetweenPassesProbe(guard),
            ClippingProbe(guard),
            TokenWeightProbe(guard, contributions),
            TargetPlaceProbe(guard, contributions),
            self.scaler,
            ScheduleProbe(),
            InfluenceProbe(guard),
            BatchNormProbe(guard),
            AverageProbe(guard, watching.model, averages),
            RecomputationProbe(guard, contributions),
        ]

    def detach(self) -> None:
        """Stop listening to what torch is called with."""
        self.contributions.detach()
        for probe in self.each:
            detach = getattr(probe, "detach", None)
            if detach is not None:
                detach()
