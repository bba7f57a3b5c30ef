"""Do workers differ as much as the spread inside their batches explains? Bets against random assignments of samples.

A worker's loss is the mean over its samples, or micro-batches. If those of all workers are exchangeable (drawn
from one pool, whatever its law), the split into workers is one of many equally likely ones: given the unordered
pool of a step, the observed deal X and M re-deals drawn without looking at it are exchangeable among each other, so

    e = f(X) / mean(f(X), f(re-deal 1), ..., f(re-deal M))

has expectation exactly 1 for every f >= 0: a permutation e-value (Koning, Post-hoc and anytime valid permutation and
group invariance testing, arXiv 2310.01153; for the observed deal among the re-deals, without which no bound holds:
Ramdas, Barber, Candes & Tibshirani, Permutation tests using arbitrary permutation distributions, Sankhya A 85, 2023).
Where there are few different deals, all of them are taken, each once.

f is the likelihood ratio of normal losses whose between-worker variance is c times what the spread within explains, in
terms of b = SS between / SS total of n losses, up to a factor that all deals share:

    f_c = (1 + b(1/c - 1)) ** (-(n - 1)/2)

The normal law sets the power, never the validity. Products over steps make e-detectors (``exchangeability``).

Letters: T steps, N workers, n sample losses of a step, M re-deals, B bets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SampleLosses = Mapping[int, Sequence[Floats]]
"""Step index to the per-sample losses of each of N workers, which need not have equally many; NaN does not count."""

LOW_BETS: tuple[float, ...] = (0.01, 0.1, 0.3)
HIGH_BETS: tuple[float, ...] = (3.0, 10.0, 30.0)
"""Alternatives c: the variance between workers, in times of what is explained."""

ALLOWANCE = 2.0
"""Factor of variance between workers, either way, that is no fault: samples of one worker are a little similar where
documents are cut into neighbouring samples (standard deviations 1.4 times larger, so variances 2 times), and a little
unlike where a batch is balanced or normalised as a whole. The observed ratio is moved towards 1 by this factor before
the bet, which only ever lowers the e-value."""

NUM_DEALS = 127
"""Re-deals of a step: one step can then speak with at most ln 128 = 4.9 nats."""

_EXHAUSTIVE = 1000
"""Different deals up to which all of them are taken."""

_MAX_CELLS = 1 << 17
"""Losses times re-deals of a step, so that 64 workers of 64 samples still take milliseconds; 31 re-deals at least."""

_LEAST_SHARE = 1e-9
"""Least share of the squares, and least distance of a share from 1, of which a logarithm is taken."""

_SEED = 0x7472_7565
"""Any number; the step is the other half of the key, so that each step has re-deals of its own."""


@dataclass(frozen=True)
class SpreadRatio:
    """``ratio``: the standard deviation between workers over what the spread within them explains (1.0 if healthy);
    ``low`` to ``high`` covers it with 95 %. ``std_between`` and ``explained`` are the two, in units of the loss.
    """

    ratio: float
    low: float
    high: float
    std_between: float
    explained: float
    num_steps: int


def log_e_values(
    sample_losses: SampleLosses,
    steps_T: Ints,
    *,
    bets: Sequence[float] = LOW_BETS + HIGH_BETS,
    allowance: float = ALLOWANCE,
) -> Floats:
    """[T, B] natural logs of the e-values of every step and bet; 0 where ``sample_losses`` has no step, or one
    without information (a worker without a loss, no two losses on any, or all losses equal).

    ``steps_T`` [T] are the optimizer steps, which key the re-deals: the same Run always gives the same answer.
    """
    log_e_TB = np.zeros((len(steps_T), len(bets)))
    for t, arrays in sample_losses.items():
        if (pool := _pool(arrays)) is None:
            continue
        values, sizes = pool
        observed, redealt_M = _between_shares(values, sizes, step=int(steps_T[t]))
        log_e_TB[t] = _log_e(observed, redealt_M, len(values), np.asarray(bets), allowance)
    return log_e_TB


def log_odds(sample_losses: SampleLosses, indices: Iterable[int], steps_T: Ints) -> Floats:
    """[R] log odds of the share of a step's squares that is between workers, less their mean over the re-deals of the
    same losses: 0 on average if they are exchangeable, below where workers are too close and above where too far
    apart. NaN at those of the steps ``indices`` without information.
    """
    log_odds_R: list[float] = []
    for t in indices:
        pool = _pool(sample_losses[t]) if t in sample_losses else None
        observed, redealt_M = _between_shares(*pool, step=int(steps_T[t])) if pool else (math.nan, np.full(1, math.nan))
        shares = np.clip(np.concatenate([[observed], redealt_M]), _LEAST_SHARE, 1 - _LEAST_SHARE)
        odds = np.log(shares / (1 - shares))
        log_odds_R.append(float(odds[0] - odds[1:].mean()))
    return np.array(log_odds_R)


def spread_ratio(sample_losses: SampleLosses, indices: Iterable[int]) -> SpreadRatio | None:
    """The ratio over the steps ``indices``, or None where none of them can say.

    Sums of squares are added up over steps before they are divided. The interval is that of the logarithm: the larger
    of the jackknife over steps and of sqrt(1/(2 d)), d the degrees of freedom between workers, 1.96 standard errors to
    each side.
    """
    rows = [row for t in indices if t in sample_losses and (row := _squares(sample_losses[t])) is not None]
    if not rows:
        return None
    table = np.array(rows)  # [T, 4] SS between, its degrees of freedom, explained SS between, 1 / mean number of losses
    squares_between, freedom, explained, inverse = table.sum(axis=0)
    if explained <= 0:
        return None
    ratio = math.sqrt(squares_between / explained)
    error = max(_jackknife(table), math.sqrt(1 / (2 * freedom)))
    per_mean = inverse / len(rows) / freedom
    return SpreadRatio(
        ratio=ratio,
        low=ratio * math.exp(-1.96 * error),
        high=ratio * math.exp(1.96 * error),
        std_between=math.sqrt(squares_between * per_mean),
        explained=math.sqrt(explained * per_mean),
        num_steps=len(rows),
    )


def by_place(sample_losses: SampleLosses) -> SampleLosses:
    """The losses dealt the other way: for each place in the batch that all workers have, their N losses there.

    Workers that read the same samples in the same order agree place by place, so that places are further apart than
    the spread inside a place explains: re-dealing these shows it far sooner than the workers' means, each worker having
    but one of those. Exchangeable losses are exchangeable over places, too. Steps with fewer than two places are left
    out.
    """
    dealt: dict[int, tuple[Floats, ...]] = {}
    for t, arrays in sample_losses.items():
        places_MN = _losses_by_place(arrays)
        if len(places_MN) > 1:
            dealt[t] = tuple(places_MN)
    return dealt


def without_profile(sample_losses: SampleLosses) -> SampleLosses:
    """The losses less the mean, over all workers and steps, of their place in the batch.

    Where batches are sorted (by length, say), places differ for good, and workers agree though their samples differ.
    """
    longest = max((len(array) for arrays in sample_losses.values() for array in arrays), default=0)
    total, count = np.zeros(longest), np.zeros(longest)
    for arrays in sample_losses.values():
        middle = np.nanmean(np.concatenate(arrays)) if any(np.isfinite(array).any() for array in arrays) else 0.0
        for array in arrays:
            measured = np.flatnonzero(np.isfinite(array))
            total[measured] += array[measured] - middle
            count[measured] += 1
    profile = total / np.maximum(count, 1)
    return {t: tuple(array - profile[: len(array)] for array in arrays) for t, arrays in sample_losses.items()}


def place_correlations(sample_losses: SampleLosses, indices: Iterable[int]) -> tuple[Floats, int]:
    """[N, N] correlations between workers of the losses at equal places, over the steps ``indices``, each step's mean
    taken out; and the number of losses of a worker in them. NaN where there are none.
    """
    rows = [
        losses_MN for t in indices if t in sample_losses and len(losses_MN := _losses_by_place(sample_losses[t])) > 1
    ]
    if not rows:
        return np.full((0, 0), np.nan), 0
    centred_SN = np.concatenate([losses_MN - losses_MN.mean() for losses_MN in rows])
    norms_N = np.sqrt(np.square(centred_SN).sum(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return centred_SN.T @ centred_SN / np.outer(norms_N, norms_N), len(centred_SN)


def _losses_by_place(arrays: Sequence[Floats]) -> Floats:
    """[m, N] the losses at places that all workers have."""
    shortest = min((len(array) for array in arrays), default=0)
    places_MN = np.stack([array[:shortest] for array in arrays], axis=1).astype(np.float64)
    return places_MN[np.isfinite(places_MN).all(axis=1)]


def _pool(arrays: Sequence[Floats]) -> tuple[Floats, tuple[int, ...]] | None:
    """The losses of a step in one array, centred, and how many each worker has; None without information. A loss that
    is NaN (a sample without a token) is left out: given which are, the others are as exchangeable as before.
    """
    arrays = [array[np.isfinite(array)] for array in arrays]
    sizes = tuple(len(array) for array in arrays)
    if len(sizes) < 2 or min(sizes) < 1 or sum(sizes) <= len(sizes):
        return None
    values = np.concatenate(arrays).astype(np.float64)
    if values.max() == values.min():  # there is no variance to share
        return None
    return values - values.mean(), sizes


def _between_shares(values: Floats, sizes: tuple[int, ...], *, step: int) -> tuple[float, Floats]:
    """The share b of the observed deal, and those [M] of the re-deals other than it."""
    total = float(np.square(values).sum())
    observed = float(_between_squares(values[None], sizes)[0]) / total
    if _num_deals(sizes) <= _EXHAUSTIVE:
        # The first of all deals is the observed one.
        return observed, _between_squares(values[_all_deals(sizes)], sizes)[1:] / total
    # Philox with the step as key: re-deals depend on nothing else, so that any part of a Run gets the same ones.
    num = max(31, min(NUM_DEALS, _MAX_CELLS // len(values)))
    rng = np.random.Generator(np.random.Philox(key=[_SEED, step]))
    deals = np.argsort(rng.random((num, len(values))), axis=1)
    return observed, _between_squares(values[deals], sizes) / total


def _between_squares(dealt_MP: Floats, sizes: tuple[int, ...]) -> Floats:
    """[M] sum of squares between workers of centred values that are dealt out in order."""
    starts = np.cumsum((0, *sizes[:-1]))
    return np.asarray((np.square(np.add.reduceat(dealt_MP, starts, axis=1)) / np.array(sizes)).sum(axis=1))


def _log_e(observed: float, others_M: Floats, num_parts: int, bets_B: Floats, allowance: float) -> Floats:
    """[B] natural logs of the e-values of one step, the observed deal among the re-deals."""
    odds_B = observed / max(1 - observed, 1e-300) * np.where(bets_B > 1, 1 / allowance, allowance)
    share_BM = np.empty((len(bets_B), 1 + len(others_M)))
    share_BM[:, 0] = np.where(np.isinf(odds_B), 1.0, odds_B / (1 + np.where(np.isinf(odds_B), 0.0, odds_B)))
    share_BM[:, 1:] = others_M
    log_f_BM = -(num_parts - 1) / 2 * np.log1p(np.clip(share_BM, 0.0, 1.0) * (1 / bets_B - 1)[:, None])
    top_B = log_f_BM.max(axis=1)
    log_sum_B = top_B + np.log(np.exp(log_f_BM - top_B[:, None]).sum(axis=1))
    return np.asarray(log_f_BM[:, 0] - log_sum_B + math.log(share_BM.shape[1]), dtype=np.float64)


def _num_deals(sizes: tuple[int, ...]) -> int:
    count, num_left = 1, sum(sizes)
    for size in sizes:
        count *= math.comb(num_left, size)
        num_left -= size
        if count > _EXHAUSTIVE:
            break
    return count


@lru_cache(maxsize=32)
def _all_deals(sizes: tuple[int, ...]) -> Ints:
    """[M, n] every way of dealing n losses to workers, those of each in ascending order; the first is 0...n - 1."""
    return np.array(list(_deals(tuple(range(sum(sizes))), sizes)), dtype=np.int64)


def _deals(cards: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(sizes) == 1:
        yield cards
        return
    for hand in combinations(cards, sizes[0]):
        dealt = set(hand)
        for rest in _deals(tuple(part for part in cards if part not in dealt), sizes[1:]):
            yield hand + rest


def _squares(arrays: Sequence[Floats]) -> tuple[float, float, float, float] | None:
    if (pool := _pool(arrays)) is None:
        return None
    values, sizes = pool
    squares_between = float(_between_squares(values[None], sizes)[0])
    squares_within = max(float(np.square(values).sum()) - squares_between, 0.0)
    freedom = len(sizes) - 1
    return (
        squares_between,
        freedom,
        squares_within / (len(values) - len(sizes)) * freedom,
        sum(1 / size for size in sizes) / len(sizes),
    )


def _jackknife(table: Floats) -> float:
    """Standard error of the log of the ratio (a standard deviation, hence the half) when steps are left out by turn;
    0 for a single step.
    """
    if len(table) < 2:
        return 0.0
    rest = table.sum(axis=0) - table
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(rest[:, 0] / rest[:, 2]) / 2
    logs = logs[np.isfinite(logs)]
    return float(np.sqrt(np.square(logs - logs.mean()).sum() * (len(logs) - 1) / len(logs))) if len(logs) else 0.0
