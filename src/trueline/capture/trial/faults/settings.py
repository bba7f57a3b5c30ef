"""Faults of what a script sets: the factor of a loss, the learning rate and its schedule, the mode of the model."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from trueline.capture.model import patches
from trueline.capture.trial.faults.planted import PlantedFault

LENGTHS = ("T_max", "T_0", "T_i", "total_iters", "step_size", "milestones")
"""Of schedules of torch: in how many steps they do something."""


class ScaledLoss(PlantedFault):
    """What backward is called on is ``size`` times as large on one rank."""

    _scaled: weakref.ref[Tensor] | None = None

    def install(self) -> None:
        super().install()
        patches.Patch(torch.amp.GradScaler, "scale", patches.calling(self._around_scale)).install()

    def of_loss(self, loss: Any) -> Any:
        scaled, self._scaled = self._scaled, None
        if not self.is_on or not isinstance(loss, Tensor) or (scaled is not None and scaled() is loss):
            return loss
        self.touch()
        return loss * self._size

    def _around_scale(self, original: Callable[..., Any], scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.is_on or not isinstance(outputs, Tensor):
            return original(scaler, outputs, *args, **kwargs)
        self.touch()
        returned = original(scaler, outputs * self._size, *args, **kwargs)
        self._scaled = weakref.ref(returned)
        return returned


class OtherRate(PlantedFault):
    """The learning rate is ``size`` times as large on one rank."""

    _rates: Sequence[tuple[dict[str, Any], Any]] = ()

    def after_backward(self) -> None:
        if not self.is_on or self._rates:
            return
        self._rates = [(group, group["lr"]) for optimizer in self.optimizers() for group in optimizer.param_groups]
        for group, rate in self._rates:
            group["lr"] = rate * self._size
        self.touch(", ".join(sorted({f"{float(rate):g}" for _, rate in self._rates})), len(self._rates))

    def after_update(self, params: Sequence[Tensor]) -> None:
        # a schedule goes on from the rate that it has made
        for group, rate in self._rates:
            group["lr"] = rate
        self._rates = ()


class ShortSchedule(PlantedFault):
    """Schedules of torch have half their length, on all ranks and from their beginning on."""

    def install(self) -> None:
        super().install()
        patches.Patch(LRScheduler, "__init__", patches.calling(self._around_init)).install()

    def _around_init(self, original: Callable[..., Any], schedule: Any, *args: Any, **kwargs: Any) -> Any:
        for name in LENGTHS:
            length = getattr(schedule, name, None)
            if isinstance(length, int | float | Counter) and length:
                setattr(schedule, name, half := _half(length))
                # past its half period a cosine climbs again; other schedules stay where they are
                self.end = half if name == "T_max" else self.end
                self.touch(f"{type(schedule).__name__} with {name}={length}")
        for phase in getattr(schedule, "_schedule_phases", ()):  # of OneCycleLR
            phase["end_step"] /= 2
            self.touch(f"{type(schedule).__name__} with total_steps={schedule.total_steps}")
        if isinstance(schedule, LambdaLR):
            schedule.lr_lambdas = [self._twice_as_fast(factor) for factor in schedule.lr_lambdas]
        return original(schedule, *args, **kwargs)

    def _twice_as_fast(self, factor: Callable[[int], float]) -> Callable[[int], float]:
        def passing(epoch: int) -> float:
            value = factor(2 * epoch)
            self.touch("LambdaLR", int(value != factor(epoch)))
            return value

        return passing


class EvaluationMode(PlantedFault):
    """What is called in training mode is put into evaluation mode, on one rank."""

    def at_call(self, module: nn.Module) -> None:
        if self.is_on and module.training:
            parts = [part for part in module.modules() if part.training and _acts_otherwise(part)]
            module.eval()
            self.touch(f"{len(parts)} modules such as {type(parts[0]).__name__}" if parts else "", len(parts))


def _half(length: Any) -> Any:
    if isinstance(length, Counter):
        return Counter({max(place // 2, 1): count for place, count in length.items()})
    return max(length // 2, 1)


def _acts_otherwise(module: nn.Module) -> bool:
    """True of what computes something else in training than in evaluation."""
    drops = isinstance(module, _DropoutNd) and module.p > 0
    return drops or isinstance(module, _BatchNorm)
