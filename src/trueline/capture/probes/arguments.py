"""Name the tensors that a forward pass is called on by its arguments, and take features of all of them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.model.layout import local, unwrap
from trueline.capture.model.untraced import in_backward
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.batch import BatchParts, batch_parts, features_of, tensors_inside
from trueline.capture.step.passes import Contributions, Pass
from trueline.schema.columns.batch_features import names_id

MAX_TENSORS = 8
"""Tensors of a forward pass that features are of, besides the first and its labels."""
MAX_NAMES = 16
"""Lists of names that are kept of a job: what is called otherwise each time is not looked at."""


def named_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call of ``module`` by the names that it gives them; by their positions where it tells none."""
    try:
        return inspect.signature(unwrap(module).forward).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return {**{str(position): value for position, value in enumerate(args)}, **kwargs}


def named_tensors(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    """The tensors among the arguments of a call, each with a name of its own: ``x``, ``x[1]``."""
    tensors: list[tuple[str, Tensor]] = []
    times = Counter[str]()
    for argument, value in named_arguments(module, args, kwargs).items():
        for name, x in tensors_inside(argument, value):
            tensors.append((f"{name}[{times[name]}]" if times[name] else name, x))
            times[name] += 1
    return tensors


class ArgumentProbe:
    """At sampled steps, features of all tensors that the model is called on: ``batch_features`` are those of the first
    and of its labels, ``argument_features`` of the others. What autograd has made is left out.

    The fact ``arguments`` has the lists of names, in each that of the first, that of the labels, then the others;
    "" where it is no argument.
    """

    name = "arguments"
    moments = ("batch", "output", "gradients")
    between = None

    def __init__(self, passes: Contributions) -> None:
        self._passes = passes
        self._name_lists: list[list[str]] = []
        self._rows: list[tuple[Pass, Tensor]] = []
        self._names: list[str] = []
        self._batch: BatchParts | None = None

    def begin(self, step: Step) -> bool:
        self._rows, self._batch = [], None
        return step.sampled

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """``argument_features``, float64 [M, 1 + K * features]: of the passes that are called as the first, an id of
        the names and what they are of; absent where there are none.
        """
        if moment == "batch":
            self._batch = batch_parts(step.args, step.kwargs)
            return {}
        if moment == "output":
            called = step.module if step.called is None else step.called
            if called is not None and not (in_backward() or self._passes.is_over):
                self._look(called, step)
            return {}
        rows, self._rows, self._batch = self._rows, [], None
        return step.counted.take("argument_features", rows)

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        """The mean over micro-batches."""
        rows = host.get("argument_features")
        return {} if rows is None or not len(rows) else {"argument_features": rows.mean(0).tolist()}

    def _look(self, module: nn.Module, step: Step) -> None:
        tensors = [(name, local(x)) for name, x in named_tensors(module, step.args, step.kwargs)]
        if self._batch is None or not tensors:
            return
        first_input = self._batch.content[0][1]
        main_tensors = (first_input, *self._batch.targets[:1])
        main = [next((name for name, x in tensors if x is main_tensor), "") for main_tensor in main_tensors]
        more_tensors = [(name, x) for name, x in tensors if name not in main and _is_data(x)][:MAX_TENSORS]
        names = [*main, *[""] * (2 - len(main)), *(name for name, _ in more_tensors)]
        if names not in self._name_lists:
            if len(self._name_lists) == MAX_NAMES:
                return
            self._name_lists.append(names)
            step.facts["arguments"] = list(self._name_lists)
        # passes of a step that are called with other arguments cannot be averaged with the first
        if not self._rows or names == self._names:
            self._names = names
            id_ = first_input.new_full((1,), names_id(names), dtype=torch.float64)
            row = torch.cat([id_, *(features_of(x, first_input) for _, x in more_tensors)])
            self._rows.append((self._passes.now(), row[None]))


def _is_data(x: Tensor) -> bool:
    plain = x.layout == torch.strided and x.numel() > 0 and not isinstance(x, nn.Parameter)
    return plain and x.grad_fn is None
