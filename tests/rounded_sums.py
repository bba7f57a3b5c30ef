"""By what independent errors of elements move their sum and their sum of squares."""

from __future__ import annotations

import math


def sum_std(error_rel: float, sum_sq: float) -> float:
    """Standard deviation of a sum of elements that have independent errors of ``error_rel`` in the L2 norm together.

    The variance of the sum is the sum of the squares of the errors, (error_rel·|x|)², whether each error is
    proportional to its element or not. ``sum_sq`` is |x|². Rounding errors are often *not* independent: equal elements
    have equal errors, and rows share a factor (the norm, the sum of a softmax). Sums were measured to move by up to 19
    of these standard deviations, sums of squares by up to 21 .
    """
    return error_rel * math.sqrt(sum_sq)


def sum_sq_std(error_rel: float, sum_sq: float, max_abs: float) -> float:
    """An upper limit of the standard deviation of a sum of squares of such elements: 2·error_rel·max|x|·|x|.

    To first order the sum changes by 2·sum of x·e. With errors proportional to elements its variance is
    4·error_rel²·sum of x⁴ <= 4·error_rel²·max|x|²·|x|²; with errors of one size it is less. Second-order terms add
    error_rel²·|x|² to the mean.
    """
    return 2 * error_rel * max_abs * math.sqrt(sum_sq)
