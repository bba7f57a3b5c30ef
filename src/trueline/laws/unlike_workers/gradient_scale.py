"""Pure scale or another gradient: the answer for each outlying gradient norm.

A worker whose loss or gradient is multiplied by c (its loss is not averaged like the others', a wrong divisor, a scaler
of its own) has the gradient it would have had, times c. Then, whatever the model:

- ln of the norm is shifted by ln c in every parameter group;
- the direction is as healthy as the others';
- the loss is c times what it would be, if it was recorded after it was scaled, or unchanged, if before.

Each is an equality of means of exchangeable values, so each can be rejected at a stated level (``NAMING_LEVEL``, split
over the groups), and each can be shown to hold within half of ln c, or 0.2 if that is less. Harder data, noisy labels
or added noise break at least one: they change some groups more than others, turn the gradient, and change the loss by
another factor. What is neither rejected nor shown yet is called so. Losses are noisy: where groups agree twice as
closely and the loss is where a scale would leave it, a scale is likely, though the loss is not known well enough to
show it. An effect that mimics a scale this closely in all groups and in the loss is called one.

A mean over fewer tokens is noisier, and its gradient longer by nearly the same factor in all groups, while the loss
stays; a sum over fewer is shorter, and the loss with it. No equality distinguishes that from a scale, so where a
worker's number of tokens, or of samples, differs persistently by more than the room, the answer is "cannot tell".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Literal

import numpy as np

from trueline.judge.compared_ranks import Bools, Floats, any_over
from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.judge.stats.intervals import LEVEL, Estimate, mean_difference, mean_of_workers
from trueline.judge.stats.memoize import memoized
from trueline.judge.stats.tails import NAMING_LEVEL
from trueline.laws.unlike_workers.outliers import Outlier, effect_of, find_outliers
from trueline.laws.unlike_workers.series import WorkerSeries
from trueline.schema.errors import CannotTell

Answer = Literal["yes", "no", "cannot tell yet", "cannot tell"]

_ROOM = 0.5
"""The fraction of ln c by which a shift may be off what a scale makes it, interval and all; over parameter groups, the
root mean square."""

_MOST_ROOM = 0.2
"""The largest room in nats, however large c: harder data of a small model made its loss and its gradient 4 times as
large, and half of ln 4 is room for anything (D5.harder of the gallery). A scale is the same factor everywhere."""

_LIKELY_ROOM = 0.25
"""The room of groups where the loss is undecided. Of 168 such cases in the trainings of studies/judgement, harder
data, noisy labels and added noise left the loss more than two of its errors away from a scale's, or groups less similar
than this, in 18 of 20; scaled workers left it within in most."""

_NEGLIGIBLE = 0.1
"""Fraction of ln c, or of a cosine, by which a worker may differ and still be called scaled, however many steps show
it: losses have terms that are not scaled, and cosines that are not all equal are predicted no better
(``_cosine_factor``)."""

_FEWEST_LIKELY = 30
"""Steps that the factor must rest on before a scale is called likely. With these, 9 of 240 runs with random labels,
harder data or added noise are ever called a scale (studies/judgement, power); 16 were when 8 steps were enough. A
factor of 1.1 is reported 5 to 17 steps later, in as many runs."""

_RARE = 1e-3
"""Fraction of losses that may be zero or negative, and are left out, before losses have no log to compare."""

_STEPS_A_CONTRAST = 10
"""Steps that there must be for each multiple that is fitted: it then adds about a tenth to the variance at most."""


@dataclass(frozen=True)
class Scale:
    """Answer to whether ``outlier`` (in the gradient norm) is a pure scale. ``log_factor`` estimates ln c; ``log_loss``
    the log ratio of the losses. ``contradictions`` names what speaks against it, ``unknowns`` what is not known yet,
    which ``likely`` says is the loss alone, near enough to be believed. ``log_counts`` is the log ratio of the numbers
    of tokens, or of samples (``count_unit``), where that may be the reason instead.
    """

    outlier: Outlier
    log_factor: Estimate
    log_loss: Estimate
    contradictions: tuple[str, ...]
    unknowns: tuple[str, ...]
    likely: bool = False
    log_counts: Estimate | None = None
    count_unit: str = ""

    @property
    def answer(self) -> Answer:
        """``yes``, ``no``, ``cannot tell yet``, or ``cannot tell``: from fewer tokens it never can be."""
        if self.contradictions:
            return "no"
        if self.log_counts is not None:
            return "cannot tell"
        likely = self.likely and self.log_factor.num_steps >= _FEWEST_LIKELY
        return "cannot tell yet" if self.unknowns and not likely else "yes"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Names of what keeps it from being called a scale."""
        if self.contradictions or self.answer == "yes":
            return self.contradictions
        if self.log_counts is not None:
            return (f"another number of {self.count_unit}",)
        return self.unknowns

    @property
    def is_loss_scaled(self) -> bool:
        """True if the recorded loss is scaled too, rather than unchanged."""
        return abs(self.log_loss.value - self.log_factor.value) < abs(self.log_loss.value)

    def explains(self, outlier: Outlier) -> bool:
        """True if this scale, if it is one, is all there is to an outlier in another quantity of the same worker."""
        overlaps = set(outlier.workers) <= set(self.outlier.concerned) and outlier.meets(self.outlier)
        return overlaps and self.answer == "yes" and (outlier.quantity != "loss" or self.is_loss_scaled)


@memoized
def scales(series: WorkerSeries, budget: AlarmBudget) -> tuple[Scale, ...]:
    """A Scale for each outlier in the gradient norm; raises ``CannotTell`` where norms cannot be judged."""
    return tuple(_ScaleTest(series, outlier).scale() for outlier in find_outliers(series, budget, "norm"))


def unexplained(outliers: Sequence[Outlier], series: WorkerSeries, budget: AlarmBudget) -> list[Outlier]:
    """The outliers in loss or direction that are not the other side of a scale."""
    try:
        norm_scales = scales(series, budget) if outliers else ()
    except CannotTell:
        norm_scales = ()
    return [outlier for outlier in outliers if not any(scale.explains(outlier) for scale in norm_scales)]


@dataclass(frozen=True)
class _ScaleTest:
    """The equalities that hold if ``outlier``, one in the gradient norm, is a pure scale. Each answers True where it is
    shown to hold, False where it is rejected, None where it is undecided.
    """

    series: WorkerSeries
    outlier: Outlier

    def scale(self) -> Scale:
        """The answer, with what speaks for and against it."""
        answers = {
            "the shift in all parameter groups": self._groups_agree(),
            "the shift of the loss": self._loss_agrees(),
            "the direction": self._direction_agrees() if self.room > 0 else None,
        }
        unknowns = tuple(name for name, answer in answers.items() if answer is None)
        log_counts, count_unit = self._count_shift()
        close = len(self.group_shifts) > 1 and largest_deviation(self.group_shifts) <= self.room * _LIKELY_ROOM / _ROOM
        return Scale(
            outlier=self.outlier,
            log_factor=self.log_factor,
            log_loss=self.log_loss,
            contradictions=tuple(name for name, answer in answers.items() if answer is False),
            unknowns=unknowns,
            likely=close and unknowns == ("the shift of the loss",) and self._is_loss_near(),
            log_counts=log_counts,
            count_unit=count_unit,
        )

    @cached_property
    def log_factor(self) -> Estimate:
        """The shift of the log norm, which is ln c."""
        return self._effect(self._steadied(self.series.log_norm))

    @cached_property
    def log_loss(self) -> Estimate:
        """The log ratio of the losses; not measured where more than a few have no log."""
        loss_TN = self.series.loss
        positive_TN = np.where(loss_TN > 0, loss_TN, np.nan)
        # A loss that is often negative has no factor, and to leave those steps out would select.
        if np.count_nonzero(loss_TN <= 0) > _RARE * loss_TN.size:
            positive_TN[:] = np.nan
        return self._effect(self._steadied(np.log(positive_TN)))

    @property
    def room(self) -> float:
        """Nats by which a shift may be off what a scale makes it."""
        return min(_ROOM * abs(self.log_factor.value), _MOST_ROOM)

    @property
    def slack(self) -> float:
        """Nats by which a shift may be off, however many steps show it."""
        return _NEGLIGIBLE * abs(self.log_factor.value)

    @cached_property
    def group_shifts(self) -> list[Estimate]:
        """The shift of each parameter group in excess of the mean of all of them."""
        groups_TNG = self.series.group_log_norm[:, :, self._measured_G]
        if not groups_TNG.shape[2]:
            return []
        residual_TNG = groups_TNG - groups_TNG.mean(axis=2, keepdims=True)
        return [self._effect(residual_TNG[:, :, g]) for g in range(groups_TNG.shape[2])]

    @property
    def _measured_G(self) -> Bools:
        return any_over(np.isfinite(self.series.group_log_norm), (0, 1))

    def _effect(self, values_TN: Floats, measure: Callable[..., Estimate] = mean_difference) -> Estimate:
        return effect_of(self.outlier, values_TN, measure)

    def _steadied(self, values_TN: Floats) -> Floats:
        """[T, N] values less what the differences between the log norms of parameter groups tell of the same batch.

        A scale leaves those differences as they are, so taking out a multiple of them (control variates: Lavenberg and
        Welch, Management Science 27, 1981) keeps the shift that it makes and drops noise. The multiples are fitted to
        all workers, centred within steps, and within each worker before the evidence and since, so that no shift is
        fitted.
        """
        series, outlier = self.series, self.outlier
        workers = sorted(outlier.workers + outlier.peers)
        norms_TNG = np.concatenate([series.log_norm[:, :, None], series.group_log_norm[:, :, self._measured_G]], axis=2)
        contrasts_TNK = norms_TNG[:, :, 1:] - norms_TNG[:, :, :1]
        columns = np.concatenate([values_TN[:, :, None], contrasts_TNK], axis=2)[: outlier.last + 1, workers]
        complete = np.asarray(np.isfinite(columns).all(axis=(1, 2)), dtype=np.bool_)
        columns = columns - columns.mean(axis=1, keepdims=True)
        stretches = slice(None, outlier.first), slice(outlier.first, None)
        pieces = [columns[steps][complete[steps]] for steps in stretches]
        pieces = [piece - piece.mean(axis=0) for piece in pieces if len(piece)]
        num_contrasts = contrasts_TNK.shape[2]
        if not num_contrasts or sum(len(piece) for piece in pieces) < _STEPS_A_CONTRAST * num_contrasts:
            return values_TN
        rows = np.concatenate(pieces).reshape(-1, 1 + num_contrasts)
        factors_K = np.linalg.lstsq(rows[:, 1:], rows[:, 0], rcond=None)[0]
        return values_TN - contrasts_TNK @ factors_K

    def _count_shift(self) -> tuple[Estimate | None, str]:
        """The log ratio of the numbers of tokens or samples, and which, where it is not 0 and more than ``room``."""
        for counts_TN, count_unit in ((self.series.tokens, "tokens"), (self.series.samples, "samples")):
            shift = self._effect(np.log(np.where(counts_TN > 0, counts_TN, np.nan)))
            low, high = shift.interval(1 - NAMING_LEVEL)
            if not low <= 0 <= high and abs(shift.value) > self.room:
                return shift, count_unit
        return None, ""

    def _groups_agree(self) -> bool | None:
        """True if all groups are shifted equally: none differs beyond chance, nor all by much; None without two."""
        shifts = self.group_shifts
        if len(shifts) < 2:
            return None
        answers = (
            shift.agrees(0.0, room=self.room, negligible=self.slack, among=len(shifts)) is False for shift in shifts
        )
        if any(answers):
            return False
        return True if largest_deviation(shifts) <= self.room else None

    def _loss_agrees(self) -> bool | None:
        """True if the loss is scaled by c or not at all."""
        log_loss, log_c = self.log_loss, self.log_factor
        if not math.isfinite(log_loss.value):
            return None
        # The error of ln c counts here alone: no scale predicts 0 without one.
        difference = replace(log_loss, error=math.hypot(log_loss.error, log_c.error))
        is_scaled = difference.agrees(log_c.value, room=self.room, negligible=self.slack)
        is_unchanged = log_loss.agrees(0.0, room=self.room, negligible=self.slack)
        if is_scaled or is_unchanged:
            return True
        return False if is_scaled is False and is_unchanged is False else None

    def _is_loss_near(self) -> bool:
        """True if the loss is where a scale would leave it, known to ``room``: its 95 % interval holds ln c or 0."""
        if not math.isfinite(self.log_loss.value) or self.log_loss.error > self.room:
            return False
        low, high = self.log_loss.interval()
        return low <= self.log_factor.value <= high or low <= 0 <= high

    def _direction_agrees(self) -> bool:
        """True if the cosine to the others is what the scale leaves it; true where none was measured.

        With two workers there is one cosine, which scaling does not change.
        """
        series, outlier = self.series, self.outlier
        cosine = self._effect(series.cosine, mean_of_workers)
        if not math.isfinite(cosine.value) or not math.isfinite(cosine.error) or len(outlier.peers) < 2:
            return True
        factor = math.exp(self.log_factor.value)
        scaled_TN = series.cosine.copy()
        num_scaled, num_peers = len(outlier.workers), len(outlier.peers)
        scaled_TN[:, list(outlier.peers)] *= _cosine_factor(cosine.value, factor, num_scaled, num_peers)
        # The peers' cosines are now what the scaled worker's own should be.
        difference = self._effect(scaled_TN)
        low, high = difference.interval(1 - NAMING_LEVEL)
        return low <= 0 <= high or abs(difference.value) <= _NEGLIGIBLE * abs(cosine.value)


def largest_deviation(effects: Sequence[Estimate]) -> float:
    """An upper 95 % bound of the root mean square of what ``effects`` estimate, which is 0 where all groups are shifted
    alike.

    The sum of squares of G estimates with errors s exceeds that of the true values d by sum(s^2), with the variance
    sum(2 s^4 + 4 d^2 s^2) (non-central chi-square); the normal quantile is taken, and d^2 from the estimate.
    """
    value, error = (np.array([getattr(effect, name) for effect in effects]) for name in ("value", "error"))
    if not np.all(np.isfinite(error)):
        return math.inf
    squares = max(float(np.sum(value**2 - error**2)), 0.0)
    variance = float(np.sum(2 * error**4)) + 4 * squares * float(np.mean(error**2))
    bound = squares + NormalDist().inv_cdf(LEVEL) * math.sqrt(variance)
    return math.sqrt(bound / len(effects))


def _cosine_factor(cosine: float, factor: float, num_scaled: int, num_peers: int) -> float:
    """The ratio of a scaled worker's cosine to the mean of the others to that of an unscaled one.

    Of N gradients of equal norm and pairwise cosine r, one has with the sum of the others with factors a the cosine
    r sum(a) / sqrt(sum(a^2) (1 - r) + r sum(a)^2). A scaled worker sees factors 1 (and c for other scaled ones), one
    that is not sees c among them, whose noise then weighs more. r is solved from the scaled worker's own ``cosine``,
    as if all others had factor 1; for a cosine of zero or less the limit r = 0 is taken.
    """
    m = num_scaled + num_peers - 1
    x = max(cosine, 0.0) ** 2
    r = min((x * (m - 1) + math.sqrt((x * (m - 1)) ** 2 + 4 * m * x)) / (2 * m), 1.0)

    def cosine_over_r(num_plain: int, num_times_c: int) -> float:
        total, squares = num_plain + factor * num_times_c, num_plain + factor**2 * num_times_c
        return total / math.sqrt(squares * (1 - r) + r * total**2)

    return cosine_over_r(num_peers, num_scaled - 1) / cosine_over_r(num_peers - 1, num_scaled)
