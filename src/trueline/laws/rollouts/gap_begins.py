"""Where in a response a gap between engine and trainer begins, and whether that goes by the length of the prompt.

R sequences.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trueline.laws.rollouts.prompts import prompts_of
from trueline.laws.rollouts.rows import Rows
from trueline.store.reader import Run

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

TIMES = 10.0
"""Times that a gap has to be what it was before, to have been none there."""
FLOOR = 1e-5
"""Gap that float32 leaves between two engines."""
FEWEST = 8
"""Sequences of a kind that are compared with those of another."""
NEARLY_ALL, _ROOM = 0.8, 0.05
"""Share of the sequences with a gap that it has to be so in, and 1 - p from which on a token could show one: where a
text was tokenised again, say, a gap begins at other tokens from case to case.
"""
REACHED = 0.9
"""Share of the gaps that have begun at a place: a sequence that ends before it has none for that."""
_EARLIEST, _LATER = 0.1, 3
"""Share of the sequences that may begin before the place at which all do, and tokens by which others are behind it: an
error of either sign is next to 0 at one token now and then.
"""


def begin_kinds(run: Run, rows: Rows, ceiling: float) -> list[str]:
    """Kinds of evidence on where the gap of ``rows`` begins, which rounding explains up to ``ceiling``:

    - ``first-equal``: the first token, which follows from the prompt alone, has none in nearly all that have it;
      beside it ``with-padding``: of a batch only prompts that are shorter than its longest have it; ``maybe-padding``:
      the longest have it too, as with padding up to a length that is fixed, or lengths are not known;
      ``without-padding``: it is not in nearly all of the shorter ones, or all prompts are of one length;
    - ``from-a-length``: it begins behind the first tokens, at one number of tokens of prompt and response in nearly all
      that have it; beside it ``in-prompts-too``: prompts of more tokens have it from the first token on.
    """
    if is_first_equal(rows, ceiling):
        return ["first-equal", _padding(run, rows, ceiling)]
    return _from_a_length(run, rows, ceiling)


def first_is_equal(rows: Rows, ceiling: float) -> Bools:
    """[R] tokens 1 to 5 are beyond what rounding leaves, and ten times as far apart as token 0 or more."""
    first, early = (rows.profile[:, k] / np.maximum(rows.profile_room[:, k], 1e-9) for k in (0, 1))
    return (early > ceiling) & (early > TIMES * np.maximum(first, FLOOR))


def is_first_equal(rows: Rows, ceiling: float) -> bool:
    """True if that is so of nearly all sequences with a gap of which the first tokens could show one."""
    judged = rows.subset((rows.gap > ceiling) & (rows.profile_room[:, 0] > _ROOM) & (rows.profile_room[:, 1] > _ROOM))
    return len(judged) >= FEWEST and float(first_is_equal(judged, ceiling).mean()) > NEARLY_ALL


def _lengths(run: Run, rows: Rows) -> Floats:
    """[R] tokens of the prompts, NaN where these were not recorded."""
    return np.array([np.nan if prompt is None else float(prompt.length) for prompt in prompts_of(run, rows)])


def _padding(run: Run, rows: Rows, ceiling: float) -> str:
    length_R = _lengths(run, rows)
    if not np.isfinite(length_R).all():
        return "maybe-padding"
    # where all are of one length there is nothing to pad
    if length_R.min() == length_R.max():
        return "without-padding"
    longest_R = np.zeros(len(rows))
    _, batch_R = np.unique(np.stack([rows.step, rows.rank]), axis=1, return_inverse=True)
    np.maximum.at(longest_R, batch_R, length_R)
    is_short_R = length_R < longest_R[batch_R]
    varies_R = np.isin(batch_R, batch_R[is_short_R]) & (rows.profile_room[:, 1] > _ROOM)
    has_gap_R = rows.gap > ceiling
    short, longest = has_gap_R[is_short_R & varies_R], has_gap_R[~is_short_R & varies_R]
    if min(len(short), len(longest)) < FEWEST:
        return "maybe-padding"
    if not short.mean() > NEARLY_ALL:
        return "without-padding"
    return "with-padding" if longest.mean() < 1 - NEARLY_ALL else "maybe-padding"


def _from_a_length(run: Run, rows: Rows, ceiling: float) -> list[str]:
    rows = rows.subset((rows.gap > ceiling) & np.isfinite(rows.begins))
    is_behind_R = rows.begins > 1
    if int(is_behind_R.sum()) < FEWEST:
        return []
    length_R = _lengths(run, rows)
    at_R = rows.begins + np.where(np.isfinite(length_R), length_R, 0.0)
    earliest = float(np.quantile(at_R[is_behind_R], _EARLIEST, method="lower"))
    is_there_R = is_behind_R & (at_R >= earliest) & (at_R <= earliest + _LATER)
    is_in_prompt_R = (rows.begins == 0) & (at_R > earliest)
    if not (is_there_R | is_in_prompt_R).mean() > NEARLY_ALL:
        return []
    return ["from-a-length", *(["in-prompts-too"] if int(is_in_prompt_R.sum()) >= FEWEST else [])]
