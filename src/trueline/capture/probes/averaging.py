"""Model averagers of torch: replicas that update by themselves and are averaged now and then, on purpose."""

from __future__ import annotations

import sys
from typing import Any

from trueline.capture.model.patches import Seam

_AVERAGERS = (
    ("torch.distributed.algorithms.model_averaging.averagers", "PeriodicModelAverager"),
    ("torch.distributed.algorithms.model_averaging.hierarchical_model_averager", "HierarchicalModelAverager"),
)
_seams: dict[str, Seam] = {}


class AveragingProbe:
    """Listens for averagers of torch, of those modules that the script has imported by now. ``averager`` is the class
    of the one that was asked to average; '' while none was.
    """

    def __init__(self) -> None:
        self.averager = ""
        for module, name in _AVERAGERS:
            if module in sys.modules:
                seam = _seams.setdefault(name, Seam(getattr(sys.modules[module], name), "average_parameters"))
                seam.add(self._at_average)

    def detach(self) -> None:
        """Stop listening."""
        for seam in _seams.values():
            seam.remove(self._at_average)

    def _at_average(self, averager: Any, *args: Any, **kwargs: Any) -> None:
        self.averager = type(averager).__name__
