"""Averages of a model's parameters that the script declares, as of EMA, SWA or a momentum teacher."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from trueline.schema.errors import CaptureError


@dataclass(frozen=True, eq=False)
class Average:
    """A declared average of a ``model`` (None: of the one that is watched), a module, a mapping from the names of its
    parameters, or a list in their order, and with which decay, if that is declared.
    """

    average: Any
    model: nn.Module | None = None
    decay: float | None = None

    @property
    def name(self) -> str:
        average = self.average
        return type(average).__name__ if isinstance(average, nn.Module) else "the average"


def declared_averages(averages: Any) -> tuple[Average, ...]:
    """``averages`` as ``trueline.watch`` takes them. Raises ``CaptureError`` for what is none."""
    entries = [averages] if isinstance(averages, nn.Module) else averages
    if not isinstance(entries, Iterable):
        raise CaptureError(f"averages is a {type(averages).__name__}. Pass a list of modules.")
    return tuple(_declared(entry) for entry in entries)


def _declared(entry: Any) -> Average:
    average, *more = entry if isinstance(entry, tuple) and entry else (entry,)
    model = more.pop(0) if more and isinstance(more[0], nn.Module) else None
    decay = more.pop(0) if more and isinstance(more[0], (int, float)) else None
    is_list = isinstance(average, list) and all(isinstance(tensor, Tensor) for tensor in average)
    if more or not (isinstance(average, (nn.Module, Mapping)) or is_list) or not 0 <= (decay or 0) <= 1:
        raise CaptureError(
            f"averages has a {type(entry).__name__} that declares no average. Pass a module, a mapping from names to "
            "tensors, a list of tensors in the order of the parameters, or a tuple of one of these and of the model "
            "that it follows, its decay (0 to 1), or both."
        )
    return Average(average, model, None if decay is None else float(decay))
