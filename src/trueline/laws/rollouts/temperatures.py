"""By what factor the log-odds of the engine are those of the trainer, where nothing else differs.

With a temperature T all log-odds of two tokens are divided by T, which nothing else does.
"""

from __future__ import annotations

import math

import numpy as np

from trueline.laws.rollouts.evidence import ratio_of_sums
from trueline.laws.rollouts.gaps import CEILING_OTHERWISE, ceiling_of
from trueline.laws.rollouts.rows import Rows

LEAST = 0.02
"""Least deviation of the slope from 1."""
FARTHEST = 2.5
"""Most that 1 / T, or T, may be where it is read from entropies: the regression is a series in 1 / T - 1."""
_FEWEST = 200
"""Tokens for a slope."""
_MOST_REST, _ROUNDINGS = 0.01, 4.0
"""Share of the log-odds that a slope may leave, and times the error of a logit: a norm with another epsilon scales
logits, too, and leaves more.
"""


def slope_of(rows: Rows) -> tuple[float | None, str]:
    """The factor, 1 where log-odds do not have one, None where nothing tells, and the beginning of a sentence on it."""
    slope, how = _slope_of_odds(rows)
    return _slope_of_surprise(rows) if slope is None else (slope, how)


def _slope_of_odds(rows: Rows) -> tuple[float | None, str]:
    """The slope of the engine's log-odds on the trainer's, where it explains all but 1 % of them, and but for what
    rounding leaves of a difference of two logits.
    """
    number = float(rows.sums["odds"].sum())
    rt, tt, rr = (float(rows.sums[name].sum()) for name in ("odds_rt", "odds_tt", "odds_rr"))
    if number < _FEWEST or tt <= 0 or rr <= 0:
        return None, ""
    slope = rt / tt
    rest = max(rr - slope * rt, 0.0) / rr
    fits = rest < _MOST_REST and math.sqrt(rest * rr / number) < _ROUNDINGS * ceiling_of(rows)
    return (slope if fits and slope > 0 else 1.0), "The log-odds of the engine are"


def _slope_of_surprise(rows: Rows) -> tuple[float | None, str]:
    """1 / T by the regression of d on H - S and on V, where that explains 90 % of it: log q - log p of a tempered p is
    b (H - S) - b² V / 2 + ... with b = 1 / T - 1 (cumulants of S).
    """
    sums = {
        name: float(rows.sums[name].sum())
        for name in ("excess_sq", "excess_var", "var_sq", "d_excess", "d_var", "d_sq")
    }
    gap = ratio_of_sums(rows.sums["beyond"], rows.sums["room"])
    if float(rows.sums["judged"].sum()) < _FEWEST or gap < CEILING_OTHERWISE:
        return None, ""
    moments = np.array([[sums["excess_sq"], -sums["excess_var"]], [-sums["excess_var"], sums["var_sq"]]])
    cross = np.array([-sums["d_excess"], sums["d_var"]])
    try:
        weights = np.linalg.solve(moments, cross)
    except np.linalg.LinAlgError:
        return None, ""
    explained = float(weights @ cross) / sums["d_sq"] if sums["d_sq"] > 0 else 0.0
    slope = 1 + float(weights[0])
    near = 1 / FARTHEST < slope < FARTHEST
    return (slope if near and explained > 0.9 else None), "By the entropy, the log-odds of the engine are"
