"""Model averagers of torch: replicas that update by themselves and are averaged now and then, on purpose."""

from __future__ import annotations

import sys
from typing import Any

from trueline.capture.model.patches import PatchedCall
from trueline.capture.probes.base import FactProbe, Moment, Step

_AVERAGERS = (
    ("torch.distributed.algorithms.model_averaging.averagers", "PeriodicModelAverager"),
    ("torch.distributed.algorithms.model_averaging.hierarchical_model_averager", "HierarchicalModelAverager"),
)
_patched: dict[str, PatchedCall] = {}


class AveragingProbe(FactProbe):
    """The fact ``local_updates``: the class of the averager of torch that was called, of those modules that the script
    has imported by now, or that the Plan declares it; '' while neither.
    """

    name = "averaging"
    moments = ("update",)

    def __init__(self) -> None:
        self._averager = ""
        for module, name in _AVERAGERS:
            if module in sys.modules:
                patched = _patched.setdefault(
                    name, PatchedCall(getattr(sys.modules[module], name), "average_parameters")
                )
                patched.add(self._at_average)

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """No columns."""
        step.facts["local_updates"] = self._averager or ("the plan" if step.plan.local_updates else "")
        return {}

    def detach(self) -> None:
        """Stop listening."""
        for patched in _patched.values():
            patched.remove(self._at_average)

    def _at_average(self, averager: Any, *args: Any, **kwargs: Any) -> None:
        self._averager = type(averager).__name__
