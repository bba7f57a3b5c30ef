"""The columns of the workers table that this law measures or alone reads, and what ``initial_values`` holds."""

from __future__ import annotations

from dataclasses import dataclass, fields

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "initial_values",
        "list<float64>",
        "",
        "Of the first step that is watched, for each parameter `InitialValues` before the update: elements looked at, "
        "those not finite, those below 2^-126 and not zero, mean, standard deviation, kurtosis, largest magnitude.",
        after="buffer_digests",
    ),
)

MAX_LOOKED = 16384
"""Elements of a parameter that are looked at: the spread of as many independent normal ones is known to 0.6 %."""

SMALLEST_NORMAL = 2.0**-126
"""Of float32 and bfloat16. What is smaller has fewer digits; float16 has nothing as small."""


@dataclass(frozen=True, slots=True)
class InitialValues:
    """One parameter, as this rank holds it, just before the first update. All numbers are float64, as they stand in the
    column, of ``looked`` elements at equal distances: those that are NaN or infinite (``nonfinite``), those that are
    not zero and below ``SMALLEST_NORMAL``; and of the finite ones the mean, the standard deviation, the kurtosis (the
    fourth central moment over the square of the second: 3 of a normal, 1.8 of a uniform distribution) and the largest
    magnitude.
    """

    looked: float
    nonfinite: float
    subnormal: float
    mean: float
    spread: float
    kurtosis: float
    largest: float


NUM_FIELDS = len(fields(InitialValues))
