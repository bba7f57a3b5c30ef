"""The columns of the workers table that this law measures or alone reads, and what ``recomputed`` holds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "recomputed",
        "string",
        "",
        "On some sampled steps in which modules ran again in the backward pass, JSON of `Recomputed`: how many values "
        "were compared with those of the forward pass, and which are not equal.",
        after="average_values",
    ),
)

UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Unit roundoff of the formats that are looked at."""

NUM_TERMS = 2**21
"""Terms of a sum that float32 adds up in another order, as kernels with atomics do."""

FEW_ROUNDINGS = 8
"""Roundings to the coarsest format: kernels add up in float32 and round once; those with atomics add a few."""


def rounding_explains(formats: Sequence[str]) -> float:
    """Up to which relative difference of two computations whose values have these formats another order of adding up is
    all that it needs: κ √2 u √n of float32 (docs/rounding.md), or ``FEW_ROUNDINGS`` of the coarsest format.
    """
    sums = math.sqrt(2 / (8 * math.log(2))) * UNITS["float32"] * math.sqrt(NUM_TERMS)
    coarse = max((UNITS[format_name] for format_name in formats if format_name in ("float16", "bfloat16")), default=0.0)
    return max(sums, FEW_ROUNDINGS * coarse)


@dataclass(frozen=True, slots=True)
class Apart:
    """The first value of a recomputation that is not that of the forward pass: the input of the module ``name``, or
    what it returned (``is_output``), of these formats and shapes. ``before`` is the module whose value was the last
    that is equal, its output if ``before_is_output``. ``relative`` is the length of the difference over the greater of
    both lengths, at most 2, of ``num`` elements; ``zeros`` how many of them are zero in one of both alone, if the rest
    is equal.
    """

    name: str
    is_output: bool
    before: str
    before_is_output: bool
    first: str
    again: str
    first_shape: tuple[int, ...]
    again_shape: tuple[int, ...]
    relative: float
    zeros: int
    num: int


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Of one step: how many values were computed again and could be compared, how many of them are ``equal`` bit for
    bit, or differ by what rounding explains; how many had no counterpart; and those that are ``apart``. ``iterating``
    are modules that change a state of theirs in each pass by design, and so once more when they are computed again.
    """

    compared: int
    equal: int
    rounded: int
    alone: int
    apart: tuple[Apart, ...]
    iterating: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Recomputed:
        """The same from what ``to_json`` gave."""
        document = json.loads(text)
        differences = [dict[str, Any](difference) for difference in document.pop("apart")]
        for difference in differences:
            difference |= {name: tuple(difference[name]) for name in ("first_shape", "again_shape")}
        iterating = tuple[str, ...](document.pop("iterating", ()))
        return cls(**document, apart=tuple(Apart(**difference) for difference in differences), iterating=iterating)
