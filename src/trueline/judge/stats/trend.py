"""Does a series fall beyond chance? Two exact tests of whether the order of its values is chance, whatever their law.

T steps, K means of equally many steps.

One sees a steady fall, however little of it is in single steps: the test of Mann (Econometrica 13, 1945) and Kendall.
If each order of K values is equally likely, the number of pairs of which the later one is lower has the law of the
number of inversions of a random permutation: a sum of independent whole numbers, uniform on 0 to 0, 0 to 1, ..., 0 to
K - 1. Of equal values the later one does not count as lower, which can only make a fall less likely to be seen.

The other sees a fall that is soon over: the mean of the first tenth less that of the last, among the same for M random
choices of as many steps. Of 1 + M equally likely differences this one is among the R largest with probability
R / (1 + M) (Phipson and Smyth, Statistical Applications in Genetics and Molecular Biology 9, 2010).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_VALUES, MOST_OF_ENDS = 64, 4096
"""Of longer series, means of equally many steps are compared: if the order of steps is chance, so is that of these."""
ENDS = 0.1
"""Share of the steps that are the first, and the last."""
CHOICES = 1999
"""Random choices of steps: the least probability that they can show is 1 of 2000."""

_NUMBERS_AT_ONCE = 2**18
"""Two megabytes are drawn at once."""


def chance_of_fall(series_T: Floats) -> float:
    """An upper bound of the probability that one of the tests sees such a fall, or a greater one, where the order of
    the series is chance: twice the lesser of both.
    """
    return min(1.0, 2 * min(_chance_of_pairs(_means(series_T, MOST_VALUES)), _chance_of_ends(series_T)))


def num_of_ends(num: int) -> int:
    """How many of so many steps are the first, and the last."""
    return max(int(num * ENDS), 1)


def _chance_of_pairs(means_K: Floats) -> float:
    num_falling = int(np.triu(means_K[:, None] > means_K[None, :], 1).sum())
    return float(_law_of_inversions(len(means_K))[num_falling:].sum())


def _chance_of_ends(series_T: Floats) -> float:
    means_K = _means(series_T, MOST_OF_ENDS)
    num = num_of_ends(len(means_K))
    if 2 * num > len(means_K):
        return 1.0
    fall = means_K[:num].mean() - means_K[-num:].mean()
    draw = np.random.default_rng(0)  # one answer for one Run
    at_once = max(_NUMBERS_AT_ONCE // len(means_K), 1)
    falls: list[Floats] = []
    for first in range(0, CHOICES, at_once):
        places_MK = np.tile(np.arange(len(means_K)), (min(at_once, CHOICES - first), 1))
        chosen_ME = means_K[draw.permuted(places_MK, axis=1)[:, : 2 * num]]
        falls.append(chosen_ME[:, :num].mean(axis=1) - chosen_ME[:, num:].mean(axis=1))
    # Of equal values, differences are equal up to rounding.
    least = fall - 1e-12 * np.abs(means_K).max()
    return float(1 + (np.concatenate(falls) >= least).sum()) / (1 + CHOICES)


def _means(series_T: Floats, most: int) -> Floats:
    """[K] of equally many steps each, ``most`` at most; the first steps that are left over are left out."""
    size = -(-len(series_T) // most) or 1
    num = len(series_T) // size
    return series_T[len(series_T) - num * size :].reshape(num, size).mean(axis=1)


@lru_cache(maxsize=8)
def _law_of_inversions(num: int) -> Floats:
    """Probabilities of 0, 1, 2, ... inversions in a random permutation of ``num`` values."""
    law = np.ones(1)
    for size in range(2, num + 1):
        law = np.convolve(law, np.full(size, 1 / size))
    return law
