"""Measure whether the order of tokens reaches a model: the first layer that mixes positions treats equal tokens at two
positions alike, where nothing tells these apart.

Letters: B rows, T positions, D model width, P pairs of positions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import astuple

import torch
from torch import Tensor, nn

from trueline.capture.model.graph import gradients_of
from trueline.schema.columns.influence import (
    DROPS,
    NO_PAIRS,
    NO_TOKENS,
    NOT_FINITE,
    NOT_MIXED,
    OWN_BACKWARD,
    OrderInfluence,
)

MAX_ROWS, MAX_LENGTH, MAX_PAIRS = 8, 512, 64
"""Rows and last positions in which equal tokens are looked for, and pairs of these that are compared."""
MAX_LAYERS = 64
"""Outputs of modules without parts, in the order in which they return, among which the first that mixes is looked
for."""

_POSITION_NAMES = re.compile("pos|rope|rotary|rotate|alibi|wpe|inv_freq|relative|slopes", re.IGNORECASE)
"""Names of modules, parameters and buffers that tell positions apart."""


class OrderReader:
    """Outputs of modules without parts, in the order of their calls, of a model that embeds tokens [B, T]."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._outputs: list[Tensor] = []

    def at_module(self, output: object) -> None:
        """A module without parts has returned: its output is kept if it has positions and a gradient."""
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, Tensor) and first.dim() == 3 and first.grad_fn is not None:
            self._outputs += [first] if len(self._outputs) < MAX_LAYERS else []

    @property
    def outputs(self) -> list[Tensor]:
        """Outputs that were kept."""
        return self._outputs

    def judged(self, embedded: Sequence[tuple[Tensor, Tensor]], *, usable: bool, placed: bool) -> list[float]:
        """The column. ``embedded`` are tokens [B, T] with what an embedding made of them; ``usable``: the graph may be
        used once more; ``placed``: the model is given positions.
        """
        return list(astuple(self._judged(embedded, usable, placed)))

    def _judged(self, embedded: Sequence[tuple[Tensor, Tensor]], usable: bool, placed: bool) -> OrderInfluence:
        if not usable:
            return OrderInfluence(OWN_BACKWARD)
        doubt = NO_TOKENS
        for ids_BT, embedded_BTD in embedded:
            outputs = [
                output for output in self._outputs if output.shape[:2] == ids_BT.shape and output is not embedded_BTD
            ]
            pairs = _pairs(ids_BT, embedded_BTD)
            if not outputs or pairs is None:
                doubt = NO_PAIRS if outputs else doubt
                continue
            mixed = _first_mixed(outputs, embedded_BTD)
            if mixed is None:
                doubt = NOT_MIXED
                continue
            return self._compared(mixed, pairs, max(_eps(output) for output in (embedded_BTD, *outputs)), placed)
        return OrderInfluence(doubt)

    def _compared(self, gradient_BTD: Tensor, pairs: Tensor, eps: float, placed: bool) -> OrderInfluence:
        row_P, first_P, second_P = pairs
        first_PD, second_PD = gradient_BTD[row_P, first_P].double(), gradient_BTD[row_P, second_P].double()
        size_P = torch.maximum(first_PD.norm(dim=1), second_PD.norm(dim=1))
        distance_P = (first_PD - second_PD).norm(dim=1)[size_P > 0] / size_P[size_P > 0]
        if not len(distance_P):
            return OrderInfluence(NO_PAIRS)
        distance = float(distance_P.max())
        if not math.isfinite(distance):
            return OrderInfluence(NOT_FINITE)
        if distance > 0 and self._drops():
            return OrderInfluence(DROPS)
        return OrderInfluence(0, float(len(distance_P)), distance, eps, float(placed), float(self._tells_positions()))

    def _drops(self) -> bool:
        return any(
            isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p > 0
            for part in self._module.modules()
        )

    def _tells_positions(self) -> bool:
        named_parts = (*self._module.named_modules(), *self._module.named_parameters(), *self._module.named_buffers())
        kinds = (type(part).__name__ for part in self._module.modules())
        return any(_POSITION_NAMES.search(name) for name in (*(name for name, _ in named_parts), *kinds))


def _pairs(ids_BT: Tensor, embedded_BTD: Tensor) -> Tensor | None:
    """int64 [3, P]: row and two positions, of equal tokens in front of the last position; None without any. Of rows
    that end in padding, whose embedding is 0, there are none: a query of 0 attends everywhere alike.
    """
    # the last positions, as the gradient is that of the last one: it may not reach far back
    few_BT = ids_BT[:MAX_ROWS, -MAX_LENGTH:]
    end = few_BT.shape[1] - 1
    if end < 2:
        return None
    # without the last position itself, whose gradient also comes from what it returns at its own place
    same_BTT = (few_BT[:, :end, None] == few_BT[:, None, :end]).triu(1)
    same_BTT &= (embedded_BTD.detach()[: len(few_BT), -1] != 0).any(-1)[:, None, None]
    pairs = same_BTT.nonzero()
    if not len(pairs):
        return None
    sampled_pairs = pairs[:: max(1, -(-len(pairs) // MAX_PAIRS))]
    shift = ids_BT.shape[1] - few_BT.shape[1]
    return torch.stack([sampled_pairs[:, 0], sampled_pairs[:, 1] + shift, sampled_pairs[:, 2] + shift])


def _first_mixed(outputs: Sequence[Tensor], embedded_BTD: Tensor) -> Tensor | None:
    """[B, T, D]: the gradient to the embeddings of the last position of the first of ``outputs`` that depends on
    others; None without any.
    """
    for output in outputs:
        weights = torch.zeros_like(output)
        weights[:, -1] = torch.arange(output.shape[-1], device=output.device).cos().to(output.dtype)
        (gradient,) = gradients_of([output], [embedded_BTD], [weights])
        # a layer that mixes no positions has a gradient at the last one alone
        if gradient is not None and bool((gradient[:, :-1] != 0).any()):
            return gradient.detach()
    return None


def _eps(x: Tensor) -> float:
    return torch.finfo(x.dtype).eps
