"""What pairs of runs say of a remedy: how much of what is wrong it leaves, and whether a sham does as much.

Letters: K pairs. What is wrong with a run is a number, smaller being better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trueline.judge.stats.intervals import t_quantile
from trueline.judge.stats.tails import binomial_tail

Floats = NDArray[np.float64]
Verdict = Literal["recovers", "partly", "no effect", "undecided"]

MAX_LEFT = 0.25
"""Of what is wrong, the share that a remedy may leave and still recover the job; less than that, taken away, is no
effect that matters."""
GAP_PART = 5.0
"""The error of taking what seeds do for a gap is that of the trial by this."""


@dataclass(frozen=True)
class Interval:
    """A share and its confidence interval."""

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        """``6 % (2 to 11 %)``."""
        return f"{self.share:.0%} ({self.low:.0%} to {self.high:.0%})"


@dataclass(frozen=True)
class Effect:
    """``verdict``, with why; ``remedy_left`` is the share of what is wrong that the remedy leaves, ``sham_left`` the
    sham; None where what is wrong is not beyond 0. ``sign_p`` is the larger of the two-sided probabilities of the exact
    sign tests against base and sham: a sham may do harm, and any change may do good.
    """

    verdict: Verdict
    why: str
    sign_p: float
    remedy_left: Interval | None = None
    sham_left: Interval | None = None


def effect_of(
    base_K: Sequence[float],
    remedy_K: Sequence[float],
    sham_K: Sequence[float],
    *,
    good_varies: bool,
    error: float = 0.05,
) -> Effect:
    """The effect over pairs; ``good_varies``: what is good was a run, which chance is in as in these."""
    base, remedy, sham = (np.asarray(values_K, dtype=np.float64) for values_K in (base_K, remedy_K, sham_K))
    sign_p = max(sign_test(remedy, sham), sign_test(remedy, base))
    is_better = sign_p <= error and max(np.sign(remedy - sham).sum(), np.sign(remedy - base).sum()) < 0
    if good_varies and not is_better and not _is_a_gap(base, error / GAP_PART):
        return _of_no_gap(base, remedy, error, sign_p)
    remedy_left, sham_left = ratio(remedy, base, error), ratio(sham, base, error)
    if remedy_left is None or sham_left is None:
        return Effect("undecided", "What is wrong with the job as it is varies too much", sign_p)
    verdict, why = _judged(remedy_left, sham_left, is_better)
    return Effect(verdict, why, sign_p, remedy_left, sham_left)


def _judged(remedy_left: Interval, sham_left: Interval, is_better: bool) -> tuple[Verdict, str]:
    if is_better and remedy_left.high < MAX_LEFT:
        return "recovers", "The remedy leaves next to nothing of it, and the sham does not"
    if is_better and remedy_left.high < 1:
        return "partly", "The remedy leaves a part of it, less than the sham"
    if is_better:
        return "undecided", "The remedy leaves less than the sham, but perhaps as much as the job as it is"
    if remedy_left.low > 1 - MAX_LEFT:
        return (
            "no effect",
            f"The remedy leaves as much of it as the job as it is: that it takes {MAX_LEFT:.0%} is excluded",
        )
    if remedy_left.high < 1 and sham_left.high < 1:
        # two changes at different places that both help say nothing about either place
        return "undecided", "The remedy leaves less than the job as it is, and so does the sham, which cannot cure"
    return "undecided", f"The remedy may take {MAX_LEFT:.0%} of it or more, and may take nothing"


def _of_no_gap(base: Floats, remedy: Floats, error: float, sign_p: float) -> Effect:
    """The effect where seeds explain what is wrong: there is no share of it to speak of; an effect that matters is then
    one that would be seen among seeds.
    """
    gain, num = base - remedy, len(base)
    highest_gain = float(gain.mean()) + t_quantile(1 - error, num - 1) * float(gain.std(ddof=1)) / math.sqrt(num)
    says = "The job as it is, is no worse than the good run by more than seeds make"
    if highest_gain < float(base.std(ddof=1)) * math.sqrt(1 + 1 / num) or not gain.any():
        return Effect("no effect", f"{says}, and no better with the remedy", sign_p)
    return Effect("undecided", f"{says}, and the remedy may do as much as they", sign_p)


def sign_test(one_K: Floats, other_K: Floats) -> float:
    """Two-sided probability that as many signs of the differences agree by chance; pairs without a difference are left
    out, and without any it is 1.
    """
    signs = np.sign(one_K - other_K)
    num, num_agree = int((signs != 0).sum()), int(max((signs > 0).sum(), (signs < 0).sum()))
    return min(1.0, 2 * binomial_tail(num_agree, num, 0.5)) if num else 1.0


def ratio(one_K: Floats, other_K: Floats, error: float) -> Interval | None:
    """mean(one) / mean(other) of paired values with Fieller's interval (J. R. Stat. Soc. B 16, 1954); None where the
    second mean may be 0.
    """
    num = len(one_K)
    mean, mean_other = float(one_K.mean()), float(other_K.mean())
    (var, covariance), (_, var_by) = (np.cov(one_K, other_K) / num).tolist()
    t = t_quantile(1 - error / 2, num - 1)
    square = mean_other * mean_other - t * t * var_by
    # the interval of the second mean holds 0, so that the ratio may be anything
    if square <= 0:
        return None
    half, rest = mean * mean_other - t * t * covariance, mean * mean - t * t * var
    root = math.sqrt(max(half * half - square * rest, 0.0))
    return Interval(mean / mean_other, (half - root) / square, (half + root) / square)


def _is_a_gap(base_K: Floats, error: float) -> bool:
    """Return whether the good run (0 here) is below what one more run of these seeds would be, by Student's t."""
    spread = float(base_K.std(ddof=1)) * math.sqrt(1 + 1 / len(base_K))
    return float(base_K.mean()) > t_quantile(1 - error, len(base_K) - 1) * spread
