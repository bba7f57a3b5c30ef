"""What rows of the columns ``input_facts`` and ``input_values`` hold, for who writes them and who reads them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

NUM_FIELDS = 5
"""Numbers of each tensor in ``input_values``; older Runs lack the last one, the bits of the largest element."""
NOISE, ROWS_ALIKE = 1, 2
"""Bits of the fourth of them."""


@dataclass(frozen=True, slots=True)
class InputFact:
    """A tensor that the model reads, by the name of its argument, or the target of a loss, named after the function.

    ``classes`` are those of a cross-entropy whose logits a layer returns; 0 of anything else.
    """

    name: str
    is_target: bool
    dtype: str
    shape: tuple[int, ...]
    classes: int = 0


@dataclass(frozen=True, slots=True)
class InputValue:
    """What it was at a step: a digest of its content in all passes; ``single`` is the number that all of its elements
    are, None where they differ; ``is_noise`` whether it looks like independent numbers of a standard normal
    distribution; ``rows_alike`` whether all of its rows, two or more, begin with the same elements in each pass.
    ``least`` and ``greatest`` are those of its elements; NaN where an older Run does not tell.
    """

    fact: InputFact
    digest: int
    single: float | None
    is_noise: bool
    rows_alike: bool = False
    least: float = math.nan
    greatest: float = math.nan


def facts_text(facts: Sequence[InputFact]) -> str:
    """The string of the column ``input_facts``."""
    return json.dumps([[fact.name, fact.is_target, fact.dtype, fact.shape, fact.classes] for fact in facts])


def input_values(facts: str, numbers: Sequence[int]) -> tuple[InputValue, ...]:
    """Of one row of both columns; empty where they are not of each other."""
    facts_of_row = input_facts(facts)
    num_fields = next((num for num in (NUM_FIELDS, NUM_FIELDS - 1) if len(numbers) == num * len(facts_of_row)), 0)
    if not num_fields:
        return ()
    rows = zip(*(iter(map(int, numbers)),) * num_fields, strict=True)
    return tuple(_value_of(fact, *row) for fact, row in zip(facts_of_row, rows, strict=True))


def _value_of(
    fact: InputFact, digest: int, single: int, smallest: int, kinds: int, largest: int | None = None
) -> InputValue:
    least, greatest = (math.nan, math.nan) if largest is None else (float_of(smallest), float_of(largest))
    return InputValue(
        fact,
        digest,
        float_of(smallest) if single else None,
        bool(kinds & NOISE),
        bool(kinds & ROWS_ALIKE),
        least,
        greatest,
    )


@lru_cache(maxsize=256)
def input_facts(text: str) -> tuple[InputFact, ...]:
    """The tensors of a string of ``input_facts``, which is one for most steps, and which several checks read."""
    return tuple(
        InputFact(str(name), bool(target), str(dtype), tuple(shape), int(classes))
        for name, target, dtype, shape, classes in json.loads(text)
    )


def float_of(bits: int) -> float:
    """The float64 of these ``bits``."""
    return struct.unpack("<d", struct.pack("<q", bits))[0]
