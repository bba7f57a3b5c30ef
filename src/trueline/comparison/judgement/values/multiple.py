"""Whether a value is a multiple of its twin: a change of scale, a change of sign, or nothing at all where there was
something. Rounding makes none of these, however much of a value it may explain.

With c = ±|x| / |y| for the run's x and the reference's y, x - cy is small against x - y if x is a multiple, and as
large if the two differ by noise in any direction. Three projections (``tensor.projections``) tell the length of both.
For noise the sum of the squares of those of x - cy, over |x - y|², has the chi-square distribution with three degrees
of freedom: its lower tail at what was measured is the chance that noise looks like a multiple. Where x is far smaller
than y, which may be noise itself, x - cy has to be small against x too: two unrelated values are sqrt(2)|x| apart.

Of N independent values, k with chances up to p happen by noise with a probability of at most C(N, k)·p^k; the smallest
over all k with such a p up to ``SINGLE``, times N for the choice of k, is the chance of what was seen in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.schema.stats import TensorStats

CHANCE = 1e-6
"""The chance of noise up to which values are taken for multiples."""

SINGLE = 1e-3
"""The chance of noise up to which one value counts as a multiple: many that are hardly unlikely are no evidence."""

_FEWEST = 8
"""Numbers that a value must have: those of one number are multiples of each other, and few numbers nearly so."""

_ROUNDED = 16 * UNIT_ROUNDOFF["bfloat16"]
"""What a factor which all numbers share, as that of a loss or of a norm, may be off by."""


class Multiple(NamedTuple):
    """The ``factor`` c, and the ``chance`` that noise looks like it."""

    factor: float
    chance: float


def multiple_of(stats: TensorStats, ref_stats: TensorStats) -> Multiple | None:
    """The factor by which the value with ``stats`` is a multiple of that with ``ref_stats``; None where nothing tells,
    or c is 1 up to the rounding of a factor that all numbers share.
    """
    p, q = stats.projections, ref_stats.projections
    if p is None or q is None or not ref_stats.norm:
        return None
    if min(stats.finite, ref_stats.finite) < max(_FEWEST, ref_stats.numel):
        return None
    # The projections of x and cy have one sign, which tells that of c.
    sign = 1.0 if sum(a * b for a, b in zip(p, q, strict=True)) >= 0 else -1.0
    factor = sign * stats.norm / ref_stats.norm
    if abs(factor - 1) <= _ROUNDED:
        return None
    residual = math.hypot(*(a - factor * b for a, b in zip(p, q, strict=True)))
    distance = math.hypot(*(a - b for a, b in zip(p, q, strict=True))) / math.sqrt(3)
    distance = max(distance, abs(stats.norm - ref_stats.norm))
    if stats.norm:
        distance = min(distance, math.sqrt(2) * stats.norm)
    return Multiple(factor, _lower_tail(residual / distance) if distance else 1.0)


def chance_of_all(chances: Sequence[float]) -> float:
    """The chance that noise makes independent values look like multiples as often, and as closely, as these do."""
    num = len(chances)
    # As many as look alike are counted together: one multiple says little, ten of them are no noise.
    bounds = (math.comb(num, k) * p**k for k, p in enumerate(sorted(chances), start=1) if p <= SINGLE)
    return min(min(bounds, default=1.0) * max(num, 1), 1.0)


def _lower_tail(root: float) -> float:
    """P(χ² <= root²) with three degrees of freedom."""
    return max(math.erf(root / math.sqrt(2)) - math.sqrt(2 / math.pi) * root * math.exp(-(root**2) / 2), 0.0)
