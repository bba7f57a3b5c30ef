"""Digest the states of the optimizer in front of the first update that is watched, and when watching ends."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from trueline.capture.model.layout import Layout, local
from trueline.capture.model.object_table import ObjectTable
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts
from trueline.tensor.digest import digest_each
from trueline.tensor.memory import is_readable


class RestartProbe:
    """The columns ``opening_states`` and ``closing_states``, of states that have the shape of their parameter: those
    that count updates are the same for all.
    """

    name = "states at the start and the end"
    moments = ("update", "closed")
    between = None

    def __init__(self) -> None:
        self._optimizers = ObjectTable[Optimizer, bool]()
        self._names: dict[str, list[tuple[str, str]]] = {}

    def begin(self, step: Step) -> bool:
        return step.watched and step.age == 0

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        optimizer = step.optimizer
        if optimizer is not None:  # of the first update, and of the last one
            self._optimizers.set(optimizer, True)
        if moment == "update" and optimizer is not None:
            return self._digests("opening_states", [optimizer], step.layout)
        if moment == "closed" and step.layout.fits():
            return self._digests("closing_states", list(self._optimizers), step.layout)
        return {}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, str]:
        texts: dict[str, str] = {}
        for column in host.keys() & self._names.keys():
            by_state: defaultdict[str, dict[str, str]] = defaultdict(dict)
            for (state, param), digest in zip(self._names.pop(column), host[column].tolist(), strict=True):
                by_state[state][param] = f"{digest % 2**64:016x}"
            texts[column] = json.dumps(by_state)
        return texts

    def _digests(self, column: str, optimizers: list[Optimizer], layout: Layout) -> dict[str, Tensor]:
        """int64 digests of all states; their names are kept until these are on the host."""
        names: list[tuple[str, str]] = []
        states: list[Tensor] = []
        for optimizer in optimizers:
            for param, param_name in _named(optimizer, layout):
                for name, state in optimizer.state.get(param, {}).items():
                    if isinstance(state, Tensor) and state.shape == param.shape and is_readable(memory := local(state)):
                        names.append((str(name), param_name))
                        states.append(memory)
        if not names:
            return {}
        self._names[column] = names
        return {column: digest_each(states, layout.device)}


def _named(optimizer: Optimizer, layout: Layout) -> Iterator[tuple[Tensor, str]]:
    """Parameters of the model by their name, and copies that a framework updates in their stead by their place."""
    for group_index, group in enumerate(optimizer.param_groups):
        for place, param in enumerate(group["params"]):
            index = layout.index_of.get(id(param))
            yield param, f"parameter {place} of group {group_index}" if index is None else layout.names[index]


def make_probe(parts: ProbeParts) -> RestartProbe:
    """The probe of this law for one watched model."""
    del parts
    return RestartProbe()
