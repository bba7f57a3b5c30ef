"""Samples and batches that are all zeros: what a copy leaves that was lost, or was not waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueline.judge.stats.tails import ALARM_LEVEL
from trueline.schema.columns.batch_features import FEATURES
from trueline.store.reader import Run

DENSE = 1e-3
"""Share of zeros among the elements of other batches up to which a sample of nothing but zeros is none of the data."""

SELDOM = 0.01
"""Share of the batches of a Run with such samples, besides one, up to which they are no part of the data."""

_ZERO_SHARE = FEATURES.index("share of zeros")


@dataclass(frozen=True)
class ZeroSamples:
    """Samples that are all zeros: (zeros, size) of batches by (step, rank), of ``num_samples`` in the Run.

    ``whole``: all of each of these batches. ``chance`` bounds that data which have such samples, at their rate in the
    other batches or at most one in as many as these, make one batch of nothing else.
    """

    counts: Mapping[tuple[int, int], tuple[int, int]]
    num_samples: int
    whole: bool
    chance: float | None


def zero_samples(run: Run) -> list[ZeroSamples]:
    """Batches of nothing but zeros; then batches some of whose samples are, where the data have few zeros otherwise.
    Samples at the end of a batch are left alone there, as they fill it up.
    """
    shares = {key: float(row[_ZERO_SHARE]) for key, row in run.lists("batch_features").items()}
    zeros = _zero_flags(run, shares)
    num_samples = sum(map(len, zeros.values()))
    whole = {key: (len(zero_B), len(zero_B)) for key, zero_B in zeros.items() if len(zero_B) and zero_B.all()}
    partial = [zero_B for key, zero_B in zeros.items() if key not in whole]
    num_inside = sum(int(zero_B.sum()) for zero_B in partial if _is_inside(zero_B))
    # One more than were seen: at a rate of 0 any batch of zeros would be impossible.
    rate = (num_inside + 1) / (sum(map(len, partial)) + 1)
    fewest = min((count for count, _ in whole.values()), default=0)
    chance = min(1.0, len(zeros) * rate**fewest)
    most_batches = 1 + SELDOM * len(zeros)
    found_whole = bool(whole) and chance <= ALARM_LEVEL and len(whole) <= most_batches
    samples = {
        key: (int(zero_B.sum()), len(zero_B))
        for key, zero_B in zeros.items()
        if zero_B.any() and (_is_inside(zero_B) or (zero_B.all() and not found_whole))
    }
    shares_of_nonzero = [share for key, share in shares.items() if key in zeros and not zeros[key].any()]
    is_dense = bool(shares_of_nonzero) and max(shares_of_nonzero) <= DENSE
    return [
        *([ZeroSamples(whole, num_samples, whole=True, chance=chance)] if found_whole else []),
        *(
            [ZeroSamples(samples, num_samples, whole=False, chance=None)]
            if samples and len(samples) <= most_batches and is_dense
            else []
        ),
    ]


def _zero_flags(run: Run, shares: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], NDArray[np.bool_]]:
    """[B] by step and rank whether each sample of the batch is all zeros; ranks without any are left out.

    ``shares`` are those of zeros among the elements of whole batches.
    """
    digests_of_zeros = {
        rank: np.array(env.zero_samples, dtype=np.uint64) for rank, env in run.env.items() if env.zero_samples
    }
    # Digests are many: only those of ranks that may have such samples are read.
    ranks = sorted({*digests_of_zeros, *(rank for (_, rank), share in shares.items() if share == 1)})
    rows = run.lists("sample_digests", ranks=ranks) if ranks else {}
    return {key: np.isin(row, digests_of_zeros.get(key[1], ())) | (shares.get(key) == 1) for key, row in rows.items()}


def _is_inside(zero_B: NDArray[np.bool_]) -> bool:
    """True if a sample that is not zero comes after one that is."""
    positions = np.flatnonzero(zero_B)
    return bool(len(positions)) and bool(np.any(~zero_B[positions[0] :]))
