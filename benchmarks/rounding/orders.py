"""Errors of sums of workers' gradients, and differences between orders, over the expected ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trueline.comparison.expect.rounding import STAGNATION, UNIT_ROUNDOFF
from trueline.trials.noise import SumSetup, measure

WORKERS = (2, 3, 4, 8, 32, 128)
COSINES = (-0.5, 0.0, 0.1, 0.5, 0.9)
"""Negative ones are shares of the least there is, -1/(N - 1)."""

NEARER = (
    *((64, 0.0), (256, 0.0), (256, 0.01), (256, 0.04), (256, 0.1), (256, 0.3)),
    *((1024, 0.02), (1024, 0.1), (1024, 0.3), (64, 1.0)),
)
"""Workers and mean cosines."""

ELEMENTS = 4096


@dataclass(frozen=True)
class Sums:
    """One setting: measured over expected error and difference, and u·sqrt(e(N)), which says how near stagnation is."""

    dtype: str
    accumulate: str
    workers: int
    cosine: float
    order: str
    error: float
    difference: float
    most: float
    nearness: float


def sums() -> Iterator[Sums]:
    """All settings."""
    for dtype in ("float32", "bfloat16", "float16"):
        for accumulate in ("same",) if dtype == "float32" else ("same", "float32"):
            for workers in WORKERS:
                for share in COSINES:
                    cosine = -share / (1 - workers) if share < 0 else share
                    yield from of(SumSetup(workers, ELEMENTS, dtype, accumulate, cosine=cosine, seed=workers))


def near_stagnation() -> Iterator[Sums]:
    """bfloat16 added one after the other: from far to near, and terms that are all equal."""
    for workers, cosine in NEARER:
        yield from of(SumSetup(workers, ELEMENTS, "bfloat16", "same", ("sequential",), cosine, 1))


def of(setup: SumSetup) -> Iterator[Sums]:
    """One of each kind of order."""
    u = UNIT_ROUNDOFF["float32" if setup.accumulate == "float32" else setup.dtype]
    count = setup.workers
    nearness = u * math.sqrt(count + count * (count - 1) * setup.cosine)
    for one in measure(setup):
        expected = one.difference_expected_rel
        yield Sums(
            setup.dtype,
            setup.accumulate,
            count,
            setup.cosine,
            one.order,
            one.error_rel / one.error_expected_rel,
            one.difference_rel / expected if expected else 0.0,
            one.difference_most_rel / expected if expected else one.difference_most_rel,
            nearness,
        )


def follows(one: Sums) -> bool:
    """Whether the laws claim to hold there."""
    return one.order == "tree" or one.nearness <= STAGNATION
