"""What an update made of each parameter, for a monitor: by how much it changed, and the states of the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trueline.capture.model.layout import clean_name, local
from trueline.capture.record.arguments import Slots
from trueline.capture.record.calls import Selection


class Updates:
    """Holds a copy of the parameters from just before an update to just after it: as much memory as they take."""

    def __init__(self) -> None:
        self._optimizer: Optimizer | None = None
        self._before: list[tuple[str, Tensor, Tensor]] = []

    def begin(self, model: nn.Module, optimizer: Optimizer, selection: Selection) -> None:
        """``optimizer`` is about to change those parameters of ``model`` that it holds."""
        self._optimizer = optimizer
        held = {id(param) for group in optimizer.param_groups for param in group["params"]}
        with torch.no_grad():
            self._before = [
                (name, param, local(param).clone())
                for name, param in ((clean_name(name), param) for name, param in model.named_parameters())
                if id(param) in held and selection.enters("opt", name)
            ]

    def end(self) -> Iterator[tuple[str, Slots]]:
        """Of each of these: its name, and as slots what the update added to it and its states, but for scalars."""
        states: Any = self._optimizer.state if self._optimizer is not None else {}
        before, self._before, self._optimizer = self._before, [], None
        with torch.no_grad():
            for name, param, was in before:
                kept = states.get(param, {})
                tensors = ((key, value) for key, value in kept.items() if isinstance(value, Tensor) and value.dim())
                yield name, [("update", was.neg_().add_(local(param))), *((f"state.{key}", x) for key, x in tensors)]
