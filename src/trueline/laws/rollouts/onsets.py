"""From which token on the two sides of a response differ, where they agree before it, and whether they are shifted
against each other from there on.

R sequences, L tokens of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trueline.laws.rollouts.rows import Rows
from trueline.laws.rollouts.tokens import tokens_of
from trueline.store.reader import Run

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BEFORE = 3
"""Fewest tokens that agree first, and that differ then."""
RATIO = 10.0
LEAST = 0.05
"""Usual |d| behind the position: more than rounding leaves."""
SHIFTED = 8
"""Fewest tokens that are those of the other side some tokens further. That as many of one response agree by chance to a
tenth of what they are apart has a probability of about 10^-8.
"""
SHIFTS = (1, -1, 2, -2, 3, -3)
"""Tokens that one side is ahead of the other."""


FAR = math.log(20)
"""|d| of a token that was hardly sampled: as the mean of p / q is 1, what is sampled from the engine is more than 20
times as likely to the trainer in one case of 20 at most (Markov's inequality), and 20 times less likely with a
probability of at most 1.05 times the distance of the two in total variation.
"""


@dataclass(frozen=True)
class Onsets:
    """Of R sequences: ``onset`` [R] the first token that differs, -1 where there is no such place; ``far`` [R, 2] the
    share of tokens ``FAR`` apart, at it and behind it; ``spread`` [R, 2] the sums from it on of d² and of the two
    sides' squared distances from their means: the first is as large as the second where the sides know nothing of each
    other. ``shift`` [R] by how many tokens the engine's log-probabilities are ahead of the trainer's from some token
    on, 0 for none; ``before`` [R] how many sampled tokens are before that one.
    """

    onset: Ints
    far: Floats
    spread: Floats
    shift: Ints
    before: Ints


def onsets_of(run: Run, rows: Rows) -> Onsets:
    """Those of ``rows``."""
    at = {
        key: index
        for index, key in enumerate(zip(rows.step.tolist(), rows.rank.tolist(), rows.row.tolist(), strict=True))
    }
    onset_R, shift_R = np.full(len(rows), -1, dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    before_R = np.zeros(len(rows), dtype=np.int64)
    onsets = Onsets(onset_R, np.zeros((len(rows), 2)), np.zeros((len(rows), 2)), shift_R, before_R)
    with np.errstate(invalid="ignore", divide="ignore"):
        suspect_R = rows.sums["abs"] / rows.sums["tokens"] > LEAST / 4
    if not suspect_R.any():
        return onsets
    for table in cast(Any, run.kept("rollouts")).pieces():
        tokens = tokens_of(table)
        d, counts = np.abs(tokens.diff()), tokens.counts
        ends = np.cumsum(tokens.length)
        columns = (cast(list[int], table[name].to_pylist()) for name in ("step", "rank", "row"))
        keys = zip(*columns, strict=True)
        for key, begin, end in zip(keys, ends - tokens.length, ends, strict=True):
            index = at.get(key, -1)
            if index >= 0 and suspect_R[index]:
                onset_R[index] = onset = _onset(d[begin:end], counts[begin:end])
                sampled = np.flatnonzero(counts[begin:end]) + begin
                sides = [tokens.columns[name][sampled] for name in ("logp_rollout", "logp_train")]
                shift_R[index], before_R[index] = _shift(*sides)
                if onset >= 0:
                    rollout, train = (side[sampled >= begin + onset] for side in sides)
                    far = np.abs(rollout - train) > FAR
                    onsets.far[index] = far[0], far[1:].mean()
                    spread = len(far) * (rollout.var() + train.var())
                    onsets.spread[index] = np.square(rollout - train).sum(), spread
    return onsets


def _shift(rollout_L: NDArray[np.float64], train_L: NDArray[np.float64]) -> tuple[int, int]:
    """By how many tokens the first is ahead of the second where the two differ, and from which token on; 0 where that
    explains nothing.
    """
    differs = np.flatnonzero(np.abs(rollout_L - train_L) > LEAST)
    if len(differs) < SHIFTED:
        return 0, 0
    begin = int(differs[0])
    rollout, train = rollout_L[begin:], train_L[begin:]
    usual = float(np.median(np.abs(rollout - train)))
    if usual < LEAST:
        return 0, 0
    for shift in SHIFTS:
        ahead, behind = (rollout[:-shift], train[shift:]) if shift > 0 else (rollout[-shift:], train[:shift])
        agrees = float(np.median(np.abs(ahead - behind))) if len(ahead) >= SHIFTED else np.inf
        if agrees < min(LEAST, usual / RATIO):
            return shift, begin
    return 0, 0


def _onset(d_L: NDArray[np.float64], counts_L: NDArray[np.bool_]) -> int:
    """The first token before which all |d| are a tenth at most of what is usual behind it."""
    positions = np.flatnonzero(counts_L)
    d = d_L[positions]
    if len(d) < 2 * BEFORE:
        return -1
    highest = np.maximum.accumulate(d)
    jumps = np.flatnonzero(d[BEFORE : len(d) - BEFORE + 1] > RATIO * highest[BEFORE - 1 : len(d) - BEFORE]) + BEFORE
    for k in jumps.tolist():
        usual = float(np.median(d[k:]))
        if usual > LEAST and highest[k - 1] * RATIO < usual:
            return int(positions[k])
    return -1
