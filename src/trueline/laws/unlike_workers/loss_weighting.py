"""Weights by which workers are averaged, equal or by tokens, read from how losses and gradients follow token counts.

A worker whose n tokens make its loss a mean contributes a gradient that is a mean over n: with more tokens its norm
stays (where all tokens pull in one direction) or falls as 1/sqrt(n) (where each pulls its own way), so that the slope
of its logarithm on log n, between workers of one step, lies between -1/2 and 0. A worker whose loss is a sum over its
tokens, divided by something that is the same on all workers, has a gradient n times as large: a slope between 1/2 and
1. The middle of the gap, 1/4, separates them whatever the noise. Adding n of the gradients weights every token equally,
which is right; adding means with equal weight is not, where n differs.

The recorded loss shows the same where it is what backward starts from: slope 0 for means, 1 for sums, 1/2 between them.

Letters: T steps, N workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from trueline.judge.stats.exchangeability import Floats
from trueline.judge.stats.tails import NAMING_LEVEL

NORM_MIDDLE = 0.25
"""Slope of log gradient norms on log tokens halfway between the steepest of means, 0, and the flattest of sums, 1/2."""

LOSS_MIDDLE = 0.5
"""Slope of log losses on log tokens halfway between means, 0, and sums, 1."""

_ERRORS = NormalDist().inv_cdf(1 - NAMING_LEVEL / 2)
"""Standard errors on each side of a slope that its interval covers: 3.29."""

_MIN_STEPS = 8
"""Steps below which residuals do not say how far a slope can be trusted."""

Averaging = Literal["equal", "by tokens"]


@dataclass(frozen=True)
class Slope:
    """A slope on log tokens between workers of one step, and the interval that covers it but for ``NAMING_LEVEL``."""

    value: float
    low: float
    high: float
    num_steps: int

    def side_of(self, middle: float) -> int:
        """1 or -1 where the whole interval is above or below ``middle``, else 0."""
        return 1 if self.low > middle else -1 if self.high < middle else 0


@dataclass(frozen=True)
class Weighting:
    """The averaging of workers, None where it is unknown; ``why`` in words, and the slopes it rests on."""

    averaging: Averaging | None
    why: str
    norm_slope: Slope | None
    loss_slope: Slope | None


def slope_on_tokens(log_values_TN: Floats, log_tokens_TN: Floats) -> Slope | None:
    """The least-squares slope with each step's means taken out, or None where fewer than 8 steps have two workers of
    unequal token counts.

    Its standard error takes steps as independent and asks nothing of the workers within one (a sandwich by step:
    Liang & Zeger, Biometrika 73, 1986), with T/(T - 1) for the parameter that is fitted.
    """
    measured = np.isfinite(log_values_TN) & np.isfinite(log_tokens_TN)
    measured &= np.count_nonzero(measured, axis=1)[:, None] > 1
    x, y = _centred(log_tokens_TN, measured), _centred(log_values_TN, measured)
    is_informative = np.square(x).sum(axis=1) > 1e-12  # equal counts leave rounding alone
    num_steps = int(np.count_nonzero(is_informative))
    if num_steps < _MIN_STEPS:
        return None
    x, y = x[is_informative], y[is_informative]
    information = float(np.square(x).sum())
    slope = float((x * y).sum() / information)
    per_step = (x * (y - slope * x)).sum(axis=1)
    error = math.sqrt(float(np.square(per_step).sum()) * num_steps / (num_steps - 1)) / information
    return Slope(slope, slope - _ERRORS * error, slope + _ERRORS * error, num_steps)


def weighting_of(
    loss_TN: Floats, log_norm_TN: Floats, log_tokens_TN: Floats, *, loss_is_local: bool | None
) -> Weighting:
    """The averaging of workers at the steps given; arrays [T, N], NaN where not measured.

    ``loss_is_local`` says whether the loss is what backward starts from, or the model's own; False where it was given
    by hand, None where unknown. Gradients decide, for they are what is averaged. Without them the loss does: a slope
    of sums decides in any case, one of means unless the loss was given by hand, when it may be the mean that was
    recorded and the sum that was trained. Where the two contradict each other nothing is decided.
    """
    norm = slope_on_tokens(log_norm_TN, log_tokens_TN)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_loss_TN = np.log(np.where(loss_TN > 0, loss_TN, np.nan))
    loss = slope_on_tokens(log_loss_TN, log_tokens_TN)
    by_norm = norm.side_of(NORM_MIDDLE) if norm else 0
    by_loss = loss.side_of(LOSS_MIDDLE) if loss else 0
    if by_loss < 0 and loss_is_local is False:
        by_loss = 0  # the mean may have been recorded and the sum trained
    if by_norm > 0:
        return Weighting("by tokens", "gradient norms grow with the tokens of a worker", norm, loss)
    if by_norm < 0 and by_loss > 0:
        return Weighting(None, "losses grow with the tokens of a worker, and gradient norms do not", norm, loss)
    if by_norm < 0:
        return Weighting("equal", "gradient norms do not grow with the tokens of a worker", norm, loss)
    if by_loss > 0:
        return Weighting("by tokens", "losses grow with the tokens of a worker", norm, loss)
    if by_loss < 0 and norm is None:
        return Weighting("equal", "losses do not grow with the tokens of a worker", norm, loss)
    return Weighting(None, "neither gradient norms nor losses say whether workers are weighted by tokens", norm, loss)


def _centred(values_TN: Floats, measured_TN: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Floats:
    """The values less the mean of their step; 0 where not measured."""
    filled = np.where(measured_TN, values_TN, 0.0)
    count = np.maximum(np.count_nonzero(measured_TN, axis=1), 1)[:, None]
    return np.where(measured_TN, filled - filled.sum(axis=1, keepdims=True) / count, 0.0)
