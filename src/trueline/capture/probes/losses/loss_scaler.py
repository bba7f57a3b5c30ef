"""Updates that a gradient scaler of torch leaves out, since gradients are not finite, and the scale that it has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trueline.capture.model import patches
from trueline.capture.probes.around_update.sampling import Waiting
from trueline.capture.probes.base import FactProbe, Moment, Step
from trueline.capture.probes.losses import loss_scaling


class LossScalerProbe(FactProbe):
    """The columns ``loss_scaler``, ``closing_loss_scaler`` and ``update_left_out``, by listening to
    ``GradScaler.step``: an optimizer that is not stepped within was left out. Fused optimizers are stepped in any case,
    and look in their kernel whether to update, at what the scaler hands them. Nothing is read from a device.
    """

    name = "loss scaler"
    moments = ("update", "closed")

    def __init__(self) -> None:
        self.num_left_out = 0
        self._scaler: Any = None
        self._steps: Optimizer | None = None
        self._step: Step | None = None
        self._waiting = Waiting[tuple[int, float, float]]()
        self._switch = patches.Switch()
        patches.update_begins.add(self._at_update, switch=self._switch)
        patches.scaler_step.add(self._before_step)
        patches.scaler_step.add(self._after_step, after=True)

    @property
    def between(self) -> tuple[Moment, ...]:
        """All, where there is a scaler."""
        return () if self._scaler is None else self.moments

    def detach(self) -> None:
        patches.update_begins.remove(self._at_update)
        self._scaler = self._steps = self._step = None
        patches.scaler_step.remove(self._before_step)
        patches.scaler_step.remove(self._after_step)

    def begin(self, step: Step) -> bool:
        self._step = step
        return True

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """A copy of the loss scale, and ``found_inf`` of a fused optimizer; at the end where an update was left out
        since the last one.
        """
        if self._scaler is None or (moment == "closed" and not self.num_left_out):
            return {}
        scaler, (num, self.num_left_out) = self._scaler, (self.num_left_out, 0)
        scale = loss_scaling.scale_of(scaler)
        factors = (getattr(scaler, name, math.nan) for name in ("_growth_factor", "_backoff_factor"))
        self._waiting.add(step.number, (num, *map(float, factors)))
        copied = scale.detach().clone() if isinstance(scale, Tensor) else torch.full((), scale)
        if moment == "closed":
            return {"closing_loss_scaler": copied}
        found_inf = getattr(step.optimizer, "found_inf", None)
        left_out = {"update_left_out": found_inf.detach().clone()} if isinstance(found_inf, Tensor) else {}
        return {"loss_scaler": copied, **left_out}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, list[float] | float]:
        """Columns: updates left out since the one before, loss scale, growth and backoff factors, and 1 if the kernel
        left this one out.
        """
        name = next((name for name in ("loss_scaler", "closing_loss_scaler") if name in host), "")
        numbers = self._waiting.take(step.number)
        if not name or numbers is None:
            return {}
        num, *factors = numbers
        left_out = {"update_left_out": float(host["update_left_out"] != 0)} if "update_left_out" in host else {}
        return {name: [float(num), float(host[name]), *factors], **left_out}

    def _before_step(self, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        index_of = self._step.layout.index_of if self._step is not None else {}
        params = (param for group in getattr(optimizer, "param_groups", ()) for param in group["params"])
        if loss_scaling.is_on(scaler) and any(id(param) in index_of for param in params):
            self._scaler, self._steps = scaler, optimizer
            self._switch.set(True)

    def _at_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # the update did begin, so the scaler did not leave it out
        if optimizer is self._steps:
            self._steps = None

    def _after_step(self, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self.num_left_out += self._steps is not None
        self._steps = None
        self._switch.set(False)
