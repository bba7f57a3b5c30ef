"""Learning rates that optimizers were made with, before any schedule touches them."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from trueline.capture.model import patches
from trueline.capture.model.object_table import ObjectTable


class ConstructedRates:
    """Of each optimizer that is made from ``listen`` on, the rate of each of its groups, where the script named one."""

    def __init__(self) -> None:
        self._rates = ObjectTable[torch.optim.Optimizer, list[float]]()
        self.listens = False

    def listen(self) -> None:
        """Look at optimizers that are made from now on."""
        if not self.listens:
            self.listens = True
            patches.optimizer_init.add(self._at_optimizer, after=True)

    def stop(self) -> None:
        """Look at none any more, and forget all."""
        self.listens = False
        patches.optimizer_init.remove(self._at_optimizer)
        self._rates.clear()

    def of(self, optimizer: torch.optim.Optimizer) -> list[float]:
        """The rates that ``optimizer``, or the one that it wraps, was made with; none where they are not known."""
        inner = getattr(optimizer, "optimizer", None)
        return self._rates.get(optimizer) or (self._rates.get(inner) if inner is not None else None) or []

    def _at_optimizer(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        rates = [group.get("lr") for group in optimizer.param_groups]
        own = inspect.signature(type(optimizer)).parameters.get("lr")
        default = None if own is None else own.default
        # what the class brings along was not asked for
        if all(isinstance(rate, (int, float)) and rate != default for rate in rates):
            self._rates.set(optimizer, [float(rate) for rate in rates])


constructed_rates = ConstructedRates()
"""One for the process, as an optimizer may be made long before it is known what it trains."""
