"""The handful of series that a job has while it runs: how far its workers are apart, and which one is farthest.

``loss`` and ``grad_norm`` are means over workers; ``loss_std`` and ``grad_norm_cv`` (standard deviation over mean) are
their dispersion; ``direction_consistency`` is the mean cosine between the gradients of two workers; ``worst_rank`` is
the rank whose gradient norm is farthest, as a ratio, from the median of all, and ``worst_rank_ratio`` that ratio. One
rank is always the farthest: whether it is too far is for the findings to say.

Letters: T steps, N workers.
"""

from __future__ import annotations

import numpy as np

from trueline.judge.compared_ranks import Floats
from trueline.judge.series.dispersion import Dispersion, dispersion
from trueline.schema.live import Numbers
from trueline.store.reader import Run

OF_SUMS = "direction_consistency"
"""The series that is known only when the sum over ranks has come back, some steps after the others."""

SERIES = ("loss", "loss_std", "grad_norm", "grad_norm_cv", OF_SUMS, "worst_rank", "worst_rank_ratio")


class Series:
    """Hands out the numbers of each step once. ``first`` is the step to begin with."""

    def __init__(self, first: int) -> None:
        self._next = dict.fromkeys(SERIES, first)

    def take_new(self, run: Run, *, whole_to: int) -> list[Numbers]:
        """What became known since it was asked before, of steps that every rank has written: those up to
        ``whole_to``. Numbers of one step may come at two times.
        """
        measured = dispersion(run)
        columns = _columns(measured)
        at_step: dict[int, dict[str, float]] = {}
        for name, values_T in columns.items():
            known_T = np.isfinite(values_T) & (measured.steps >= self._next[name]) & (measured.steps <= whole_to)
            for index in np.flatnonzero(known_T):
                at_step.setdefault(int(measured.steps[index]), {})[name] = float(values_T[index])
                self._next[name] = int(measured.steps[index]) + 1
        return [Numbers(step, at_step[step]) for step in sorted(at_step)]


def _columns(measured: Dispersion) -> dict[str, Floats]:
    """[T] each series by its name; NaN where not measured."""
    worst_T, ratio_T = _farthest(measured.norms, measured.ranks)
    with np.errstate(invalid="ignore", divide="ignore"):
        counts = [np.count_nonzero(~np.isnan(values_TN), axis=1) for values_TN in (measured.losses, measured.norms)]
        loss_T, norm_T = (
            np.nansum(values_TN, axis=1) / np.where(count, count, np.nan)
            for values_TN, count in zip((measured.losses, measured.norms), counts, strict=True)
        )
    values = (loss_T, measured.loss_std, norm_T, measured.norm_cv, measured.cosine_mean, worst_T, ratio_T)
    return dict(zip(SERIES, values, strict=True))


def _farthest(norms_TN: Floats, ranks: tuple[int, ...]) -> tuple[Floats, Floats]:
    """[T] the rank whose norm is farthest from the median over ranks, and its norm over that median; NaN for fewer than
    three workers (of two, both are equally far) or where not all measured a positive norm.
    """
    worst_T, ratio_T = (np.full(len(norms_TN), np.nan) for _ in range(2))
    known_T = (np.isfinite(norms_TN) & (norms_TN > 0)).all(axis=1)
    if norms_TN.shape[1] > 2 and known_T.any():
        ratios = norms_TN[known_T] / np.median(norms_TN[known_T], axis=1, keepdims=True)
        index = np.abs(np.log(ratios)).argmax(axis=1)
        worst_T[known_T] = np.asarray(ranks, dtype=float)[index]
        ratio_T[known_T] = np.take_along_axis(ratios, index[:, None], axis=1)[:, 0]
    return worst_T, ratio_T
