"""Samples and batches that are all zeros: what a copy leaves that was lost, or was not waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trueline.judge.stats.tails import ALARM_LEVEL
from trueline.schema.columns.batch_features import FEATURES
from trueline.store.reader import Run

DENSE = 1e-3
"""Share of zeros among the elements of other batches up to which a sample of nothing but zeros is none of the data."""

SELDOM = 0.01
"""Share of the batches of a Run with such samples, besides one, up to which they are no part of the data."""

_AT = FEATURES.index("share of zeros")


@dataclass(frozen=True)
class ZeroSamples:
    """Samples that are all zeros: how many of how many, by (step, rank), of ``num_samples`` in the Run. ``whole``: all
    of each of these batches. ``chance`` bounds that data which have such samples, at their rate in the other batches or
    at most one in as many as these, make one batch of nothing else.
    """

    counts: Mapping[tuple[int, int], tuple[int, int]]
    num_samples: int
    whole: bool
    chance: float | None


def zero_samples(run: Run) -> list[ZeroSamples]:
    """Batches of nothing but zeros; then batches some of whose samples are, where the data have few zeros otherwise.
    Samples at the end of a batch are left alone there, as they fill it up.
    """
    shares = {key: float(row[_AT]) for key, row in run.lists("batch_features").items()}
    known = {rank: np.array(env.zero_samples, dtype=np.uint64) for rank, env in run.env.items() if env.zero_samples}
    ranks = sorted({*known, *(rank for (_, rank), share in shares.items() if share == 1)})
    rows = run.lists("sample_digests", ranks=ranks) if ranks else {}
    zeros: dict[tuple[int, int], np.ndarray] = {}
    for key, digests in rows.items():
        zeros[key] = np.isin(digests, known.get(key[1], ())) | (shares.get(key) == 1)
    num = sum(map(len, zeros.values()))
    whole = {key: (len(at), len(at)) for key, at in zeros.items() if len(at) and at.all()}
    others = [at for key, at in zeros.items() if key not in whole]
    rate = (sum(int(at.sum()) for at in others if _inside(at)) + 1) / (sum(map(len, others)) + 1)
    fewest = min((count for count, _ in whole.values()), default=0)
    chance = min(1.0, len(zeros) * rate**fewest)
    found: list[ZeroSamples] = []
    if whole and chance <= ALARM_LEVEL and len(whole) <= 1 + SELDOM * len(zeros):
        found.append(ZeroSamples(whole, num, whole=True, chance=chance))
    single = {key: at for key, at in zeros.items() if at.any() and (_inside(at) or (at.all() and not found))}
    some = {key: (int(at.sum()), len(at)) for key, at in single.items()}
    other = [share for key, share in shares.items() if key in zeros and not zeros[key].any()]
    if some and len(some) <= 1 + SELDOM * len(zeros) and other and max(other) <= DENSE:
        found.append(ZeroSamples(some, num, whole=False, chance=None))
    return found


def _inside(zero_B: Sequence[bool] | np.ndarray) -> bool:
    """Whether a sample that is not zero comes after one that is."""
    at = np.flatnonzero(zero_B)
    return bool(len(at)) and bool(np.any(~np.asarray(zero_B)[at[0] :]))
