"""The kinds of faults by their names."""

from __future__ import annotations

from typing import Any

from trueline.capture.trial.faults.planted import PlantedFault
from trueline.capture.trial.faults.samples import OtherLabels, OtherOrder, SameSamples
from trueline.capture.trial.faults.settings import EvaluationMode, OtherRate, ScaledLoss, ShortSchedule
from trueline.capture.trial.faults.tensors import FlippedBit, LostUpdate, NotANumber, NotReduced

KINDS: dict[str, type[PlantedFault]] = {
    "none": PlantedFault,
    "loss": ScaledLoss,
    "labels": OtherLabels,
    "samples": SameSamples,
    "order": OtherOrder,
    "mode": EvaluationMode,
    "nan": NotANumber,
    "unreduced": NotReduced,
    "bit": FlippedBit,
    "update": LostUpdate,
    "rate": OtherRate,
    "schedule": ShortSchedule,
}


def fault_of(kind: str, **settings: Any) -> PlantedFault:
    """The fault of a kind, to be installed; raises ``KeyError`` for what is none."""
    return KINDS[kind](**settings)
