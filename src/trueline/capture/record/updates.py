"""Effect of an update on each parameter, for a monitor: by how much it changed, and the states of the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trueline.capture.model.layout import local
from trueline.capture.record.arguments import Slots


class ParamUpdates:
    """Holds a copy of the parameters from just before an update to just after it: as much memory as they take."""

    def __init__(self) -> None:
        self._optimizer: Optimizer | None = None
        self._param_ids: frozenset[int] = frozenset()
        self._before: list[tuple[str, Tensor, Tensor]] = []

    def begin(self, optimizer: Optimizer) -> None:
        """``optimizer`` is about to change the parameters that it holds."""
        self._optimizer = optimizer
        self._param_ids = frozenset(id(param) for group in optimizer.param_groups for param in group["params"])

    def take(self, name: str, param: Tensor) -> None:
        """Copy a parameter, if it is one of the optimizer's."""
        if id(param) in self._param_ids:
            with torch.no_grad():
                self._before.append((name, param, local(param).clone()))

    def end(self) -> Iterator[tuple[str, Slots]]:
        """(name, slots) of each parameter that was copied: what the update added, and its states but for scalars."""
        states: Any = self._optimizer.state if self._optimizer is not None else {}
        before, self._before, self._optimizer, self._param_ids = self._before, [], None, frozenset()
        with torch.no_grad():
            for name, param, was in before:
                state = states.get(param, {})
                tensors = ((key, value) for key, value in state.items() if isinstance(value, Tensor) and value.dim())
                update = torch.sub(local(param), was, out=was)  # into the copy, so that no more memory is needed
                yield name, [("update", update), *((f"state.{key}", x) for key, x in tensors)]
