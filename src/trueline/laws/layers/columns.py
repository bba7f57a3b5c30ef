"""The column of the workers table that this law measures, and what it holds."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "layers_in_a_row",
        "string",
        "",
        "At one early sampled step, JSON of `LayersInRow`: how many linear layers and convolutions the losses are "
        "computed by, and which of them follow each other with nothing between them that is not linear.",
    ),
)


@dataclass(frozen=True, slots=True)
class TwoLayers:
    """Two layers by the names of their parameters ('' without one), of which the second reads nothing but what the
    first returns, wherever they are called: ``inputs`` → ``width`` → ``outputs`` features or channels, the ``kernel``
    of each that is a convolution, [] of others, and their ``weights`` together. ``between`` are "dropout" and "a
    scaling". Of a convolution of which all positions go into a linear layer, as ``elements``, a sample has ``taken``
    inputs; both are 0 elsewhere.
    """

    first: str
    second: str
    inputs: int
    width: int
    outputs: int
    kernels: tuple[tuple[int, ...], tuple[int, ...]]
    between: tuple[str, ...]
    weights: int
    taken: int = 0
    elements: int = 0

    @property
    def is_one(self) -> bool:
        """True where one layer can do what both do, with no more weights: the width between them limits nothing.

        A convolution of one position that keeps the number of channels, beside one of several, is left alone: so
        autoencoders of images end and begin.
        """
        if self.elements:
            return self.elements >= self.taken
        areas = [math.prod(kernel) for kernel in self.kernels]
        pointwise = [bool(kernel) and area == 1 for kernel, area in zip(self.kernels, areas, strict=True)]
        if max(areas) > 1 and ((pointwise[0] and self.inputs == self.width) or (pointwise[1] and self.is_square)):
            return False
        return self.width >= min(self.inputs * areas[0], self.outputs * areas[1])

    @property
    def is_square(self) -> bool:
        """True where the second has as many outputs as inputs."""
        return self.width == self.outputs


@dataclass(frozen=True, slots=True)
class LayersInRow:
    """``layers`` of the losses of a step, and ``pairs`` of them; not ``complete`` where the graph is larger than what
    is looked at.
    """

    layers: int
    pairs: tuple[TwoLayers, ...]
    complete: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LayersInRow:
        """The same from what ``to_json`` gave."""
        document: dict[str, Any] = json.loads(text)
        pairs: list[dict[str, Any]] = document["pairs"]
        for pair in pairs:
            pair["kernels"] = tuple(tuple(kernel) for kernel in pair["kernels"])
            pair["between"] = tuple(pair["between"])
        return cls(document["layers"], tuple(TwoLayers(**pair) for pair in pairs), document["complete"])
