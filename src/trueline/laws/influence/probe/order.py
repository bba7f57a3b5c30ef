"""Whether the order of tokens reaches a model: the first layer that mixes positions takes equal tokens at two places
alike, where nothing tells these apart.

Letters: B rows, T positions, D model width, P pairs of places.
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

_PLACES = re.compile("pos|rope|rotary|rotate|alibi|wpe|inv_freq|relative|slopes", re.IGNORECASE)
"""What modules, parameters and buffers that tell places apart are called."""


class OrderReader:
    """What modules without parts return, one after the other, of a model that embeds tokens [B, T]."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._made: list[Tensor] = []

    def at_module(self, output: object) -> None:
        """A module without parts has returned: kept if it has places and a gradient."""
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, Tensor) and first.dim() == 3 and first.grad_fn is not None:
            self._made += [first] if len(self._made) < MAX_LAYERS else []

    @property
    def outputs(self) -> list[Tensor]:
        """That were kept."""
        return self._made

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
            made = [each for each in self._made if each.shape[:2] == ids_BT.shape and each is not embedded_BTD]
            pairs = _pairs(ids_BT)
            if not made or pairs is None:
                doubt = NO_PAIRS if made else doubt
                continue
            mixed = _first_mixed(made, embedded_BTD)
            if mixed is None:
                doubt = NOT_MIXED
                continue
            return self._compared(mixed, pairs, max(_eps(each) for each in (embedded_BTD, *made)), placed)
        return OrderInfluence(doubt)

    def _compared(self, gradient_BTD: Tensor, pairs: Tensor, eps: float, placed: bool) -> OrderInfluence:
        row_P, one_P, other_P = pairs
        first_PD, second_PD = gradient_BTD[row_P, one_P].double(), gradient_BTD[row_P, other_P].double()
        size_P = torch.maximum(first_PD.norm(dim=1), second_PD.norm(dim=1))
        apart_P = (first_PD - second_PD).norm(dim=1)[size_P > 0] / size_P[size_P > 0]
        if not len(apart_P):
            return OrderInfluence(NO_PAIRS)
        apart = float(apart_P.max())
        if not math.isfinite(apart):
            return OrderInfluence(NOT_FINITE)
        if apart > 0 and self._drops():
            return OrderInfluence(DROPS)
        return OrderInfluence(0, float(len(apart_P)), apart, eps, float(placed), float(self._tells_places()))

    def _drops(self) -> bool:
        return any(
            isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p > 0
            for part in self._module.modules()
        )

    def _tells_places(self) -> bool:
        named = (*self._module.named_modules(), *self._module.named_parameters(), *self._module.named_buffers())
        kinds = (type(part).__name__ for part in self._module.modules())
        return any(_PLACES.search(name) for name in (*(name for name, _ in named), *kinds))


def _pairs(ids_BT: Tensor) -> Tensor | None:
    """int64 [3, P]: row and two places, of equal tokens in front of the last position; None without any."""
    few_BT = ids_BT[:MAX_ROWS, -MAX_LENGTH:]
    end = few_BT.shape[1] - 1
    if end < 2:
        return None
    same_BTT = (few_BT[:, :end, None] == few_BT[:, None, :end]).triu(1)
    found = same_BTT.nonzero()
    if not len(found):
        return None
    chosen = found[:: max(1, -(-len(found) // MAX_PAIRS))]
    shift = ids_BT.shape[1] - few_BT.shape[1]
    return torch.stack([chosen[:, 0], chosen[:, 1] + shift, chosen[:, 2] + shift])


def _first_mixed(made: Sequence[Tensor], embedded_BTD: Tensor) -> Tensor | None:
    """[B, T, D]: the gradient to the embeddings of the last position of the first of ``made`` that depends on others;
    None without any.
    """
    for each in made:
        weights = torch.zeros_like(each)
        weights[:, -1] = torch.arange(each.shape[-1], device=each.device).cos().to(each.dtype)
        (gradient,) = gradients_of([each], [embedded_BTD], [weights])
        if gradient is not None and bool((gradient[:, :-1] != 0).any()):
            return gradient.detach()
    return None


def _eps(x: Tensor) -> float:
    return torch.finfo(x.dtype).eps
