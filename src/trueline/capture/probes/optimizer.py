"""The optimizer's hyper-parameters of a step: learning rates as they are, everything else as one digest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import xxhash

from trueline.capture.job.environment import plain_value
from trueline.capture.probes.base import FactProbe, Moment, Step


class OptimizerProbe(FactProbe):
    """The columns ``lr`` and ``optimizer_digest``."""

    name = "optimizer"
    moments = ("update",)

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """``hyper_parameters``."""
        return {} if step.optimizer is None else hyper_parameters(step.optimizer)


def hyper_parameters(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Columns ``lr`` (one float a parameter group) and ``optimizer_digest`` (uint64). Tensor values on a device count
    as not measured: reading them would synchronise.
    """
    rates: list[float] = []
    facts: list[object] = [type(optimizer).__name__]
    for group in optimizer.param_groups:
        plain = {key: plain_value(value) for key, value in group.items() if key != "params"}
        rate = plain.get("lr")
        rates.append(float(rate) if isinstance(rate, (int, float)) else float("nan"))
        facts.append((len(group["params"]), sorted(plain.items(), key=lambda item: item[0])))
    return {"lr": rates, "optimizer_digest": xxhash.xxh3_64_intdigest(repr(facts).encode())}


_COUNTING = (
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.RMSprop, torch.optim.Rprop, torch.optim.Adadelta, torch.optim.ASGD, torch.optim.SparseAdam),
)
"""Optimizers of torch whose state counts the updates of each parameter from the first on; that of SGD does not."""


def updates_made(optimizers: Iterable[torch.optim.Optimizer | None]) -> int | None:
    """How many updates the state of the optimizers counts, with that of a checkpoint if it was loaded; None where none
    of them counts. Reads a number from the device.
    """
    counts: list[int] = []
    for optimizer in optimizers:
        if optimizer is None:
            continue
        steps = [state.get("step") for state in optimizer.state.values() if isinstance(state, dict)]
        known = [int(step) for step in steps if isinstance(step, (int, float)) or _is_scalar(step)]
        if known:
            counts.append(max(known))
        elif not optimizer.state and isinstance(optimizer, _COUNTING):
            counts.append(0)
    return max(counts, default=None)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1
