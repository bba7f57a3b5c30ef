"""The dispersion of the workers at each step: in loss, in gradient norm, in gradient direction.

These are for the eye; `dispersion-high`, `dispersion-low` and the outlier checks judge.

Letters: T steps, N workers, G groups, k sketch length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import Floats, Ints, columns_of, data_parallel_ranks, numbers
from trueline.judge.stats.tails import chi_square_quantile
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

RowsByStepRank = Mapping[tuple[int, int], NDArray[Any]]


@dataclass(frozen=True)
class Dispersion:
    """Per step [T], and per step and worker [T, N]; NaN where not measured, or on fewer than two workers.

    ``std`` has N - 1 in its denominator; ``range`` is largest minus smallest; ``cv`` is std over mean.
    ``cosine_mean`` is over all pairs of workers, ``cosine_pairs`` [T, N] of each worker to the others,
    ``cosine_smallest`` the least of these.
    """

    steps: Ints
    ranks: tuple[int, ...]
    losses: Floats
    loss_std: Floats
    loss_range: Floats
    norms: Floats
    norm_std: Floats
    norm_range: Floats
    norm_cv: Floats
    cosine_mean: Floats
    cosine_se: Floats
    cosine_pairs: Floats
    cosine_smallest: Floats


@dataclass(frozen=True)
class ChanceBand:
    """Band that holds the standard deviation over workers with probability ``level`` if all have one spread.
    --

    ``low`` and ``high`` are in the unit of what was measured. It is what chance alone gives workers with equal
    spread, not a judgement: real spread may change as training goes on.
    """

    low: float
    high: float
    pooled_std: float
    level: float
    num_workers: int


@dataclass(frozen=True)
class CosineMatrix:
    """Cosines between the gradients of all workers at a step [N, N], and their standard errors [N, N].

    ``exact`` ones come from the gradients and have no error; others from sketches.
    """

    step: int
    ranks: tuple[int, ...]
    cosines: Floats
    standard_errors: Floats
    exact: bool


def dispersion(run: Run) -> Dispersion:
    """The dispersions of a Run over its data-parallel workers; arrays are empty where it has no rows."""
    ranks = data_parallel_ranks(run)
    losses, norms = numbers(run, "loss", ranks)[0], numbers(run, "grad_norm", ranks)[0]
    pairs = numbers(run, "cosine_pairs", ranks)[0]
    loss_std, loss_range, _ = _spread(losses)
    norm_std, norm_range, norm_mean = _spread(norms)
    with np.errstate(divide="ignore", invalid="ignore"):
        norm_cv = norm_std / norm_mean
    return Dispersion(
        steps=run.steps.astype(np.int64),
        ranks=tuple(ranks),
        losses=losses,
        loss_std=loss_std,
        loss_range=loss_range,
        norms=norms,
        norm_std=norm_std,
        norm_range=norm_range,
        norm_cv=norm_cv,
        cosine_mean=_any_worker(numbers(run, "cosine_mean", ranks)[0]),
        cosine_se=_any_worker(numbers(run, "cosine_se", ranks)[0]),
        cosine_pairs=pairs,
        cosine_smallest=_over_measured(np.fmin, pairs),
    )


def chance_band(std_T: Floats, num_workers: int, *, level: float = 0.99) -> ChanceBand | None:
    """The band of the standard deviations ``std_T`` [T] over ``num_workers`` workers, or None where none is finite.

    (N - 1) s^2 / sigma^2 of normal values is chi-square with N - 1 degrees of freedom. sigma^2 is pooled over the Run
    robustly: the median of s^2 over the median of that law, which a minority of odd steps does not move. The band is
    sigma * sqrt(q / (N - 1)) with q the quantiles (1 - level)/2 and (1 + level)/2. Raises ValueError for a ``level``
    outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"The level of a chance band lies between 0 and 1, got {level}.")
    variances = np.square(std_T[np.isfinite(std_T)])
    dof = num_workers - 1
    if not len(variances) or dof < 1:
        return None
    pooled = float(np.median(variances)) * dof / chi_square_quantile(0.5, dof)
    low, high = (chi_square_quantile((1 + sign * level) / 2, dof) for sign in (-1, 1))
    return ChanceBand(
        low=math.sqrt(pooled * low / dof),
        high=math.sqrt(pooled * high / dof),
        pooled_std=math.sqrt(pooled),
        level=level,
        num_workers=num_workers,
    )


def steps_with_cosines(run: Run) -> Ints:
    """Steps at which all data-parallel workers left a sketch or exact cosines: those that ``cosine_matrices`` takes."""
    ranks = data_parallel_ranks(run)
    left_TN = (run.measured("sketch") | run.measured("exact_cosines"))[:, columns_of(run, ranks)]
    return run.steps[left_TN.all(axis=1) & bool(ranks)].astype(np.int64)


def cosine_matrices(run: Run, steps: Sequence[int]) -> list[CosineMatrix]:
    """The cosines between all workers at each of ``steps``: exact ones where they were recorded, else from sketches.

    Raises ``CannotTell`` where a worker left neither; see ``steps_with_cosines``.
    """
    exact, sketches = (run.lists(column, steps=steps) for column in ("exact_cosines", "sketch"))
    return [_cosine_matrix(run, step, exact, sketches) for step in steps]


def _cosine_matrix(run: Run, step: int, exact_of: RowsByStepRank, sketch_of: RowsByStepRank) -> CosineMatrix:
    ranks = data_parallel_ranks(run)
    exact = _values_at_step(step, ranks, exact_of)
    if exact is not None and exact.shape == (len(ranks), len(ranks)):
        return CosineMatrix(step, tuple(ranks), exact, np.zeros_like(exact), exact=True)
    sketches = _values_at_step(step, ranks, sketch_of)
    length = run.env[ranks[0]].sketch_length if ranks and ranks[0] in run.env else 0
    if sketches is None or length < 1 or sketches.shape[1] % length:
        raise CannotTell(f"step {step} has no sketches of all workers; steps_with_cosines lists those that have")
    cosines, errors = sketched_cosines(sketches.reshape(len(ranks), -1, length))
    return CosineMatrix(step, tuple(ranks), cosines, errors, exact=False)


def sketched_cosines(sketches_NGk: Floats) -> tuple[Floats, Floats]:
    """Cosines [N, N] between workers from their sketches, and standard errors [N, N]; NaN for a gradient of zero.

    With X = sum_g S_g(a).S_g(b) and A, B the same of a and b with themselves, the cosine is X / sqrt(A B). The k
    numbers of a group's two sketches behave like k draws of a pair of normal variables, so per group (x, u, v for X,
    A, B)

        Var x = (u v + x^2)/k    Var u = 2 u^2/k    Cov(x, u) = 2 u x/k    Cov(u, v) = 2 x^2/k

    and the delta method on X / sqrt(A B) gives, with c the cosine,

        k Var c = sum_g (u v + x^2)/(A B) + c^2/2 (u^2/A^2 + v^2/B^2 + 2 x^2/(A B)) - 2 c x (u/A + v/B)/sqrt(A B)

    which is (1 - c^2)^2 for one group, the standard error of a correlation of k samples.
    """
    k = sketches_NGk.shape[2]
    dots_GNN = np.einsum("agk,bgk->gab", sketches_NGk, sketches_NGk)
    squares_GN = np.einsum("gaa->ga", dots_GNN)
    total_N = squares_GN.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        norms_NN = np.sqrt(np.outer(total_N, total_N))
        cosines = dots_GNN.sum(axis=0) / norms_NN
        x_GNN = dots_GNN / norms_NN
        share_GN = squares_GN / total_N
        u_GNN, v_GNN = share_GN[:, :, None], share_GN[:, None, :]
        variance = (
            (u_GNN * v_GNN + x_GNN**2)
            + cosines**2 / 2 * (u_GNN**2 + v_GNN**2 + 2 * x_GNN**2)
            - 2 * cosines * x_GNN * (u_GNN + v_GNN)
        ).sum(axis=0) / k
    np.fill_diagonal(variance, np.where(total_N > 0, 0.0, np.nan))
    return np.clip(cosines, -1, 1), np.sqrt(np.maximum(variance, 0))


def _spread(values_TN: Floats) -> tuple[Floats, Floats, Floats]:
    """Standard deviation, range and mean [T] over the workers that measured; NaN for fewer than two."""
    count_T = np.count_nonzero(~np.isnan(values_TN), axis=1)
    enough_T = count_T > 1
    filled_TN = np.where(np.isnan(values_TN), 0.0, values_TN)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_T = filled_TN.sum(axis=1) / count_T
        square_T = np.where(np.isnan(values_TN), 0.0, (values_TN - mean_T[:, None]) ** 2).sum(axis=1)
        std_T = np.sqrt(square_T / (count_T - 1))
        range_T = _over_measured(np.fmax, values_TN) - _over_measured(np.fmin, values_TN)
    return tuple(np.where(enough_T, values, np.nan) for values in (std_T, range_T, mean_T))  # type: ignore[return-value]


def _over_measured(extreme: np.ufunc, values_TN: Floats) -> Floats:
    """[T] fmin or fmax over workers; NaN where nothing was measured."""
    if not values_TN.shape[1]:
        return np.full(len(values_TN), np.nan)
    return extreme.reduce(values_TN, axis=1)


def _any_worker(values_TN: Floats) -> Floats:
    """[T] the value that is equal on all workers, from any that wrote it."""
    return _over_measured(np.fmax, values_TN)


def _values_at_step(step: int, ranks: list[int], rows: RowsByStepRank) -> Floats | None:
    """[N, K] the values of a list column at one step, or None where a worker has none or of another length."""
    values_of_ranks = [rows.get((step, rank)) for rank in ranks]
    present = [row.astype(np.float64) for row in values_of_ranks if row is not None]
    if len(present) < len(ranks) or len({len(row) for row in present}) != 1:
        return None
    return np.stack(present)
