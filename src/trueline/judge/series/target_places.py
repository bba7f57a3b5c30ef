"""Places of each rank's targets in its input: the next token, as a language model's are, or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trueline.judge.compared_ranks import Ints
from trueline.judge.stats.memoize import memoized
from trueline.schema.columns.target_places import PLACES
from trueline.store.reader import Run

NEXT = 1
"""Places from a token to its target in a language model."""

FEWEST = 64
"""Targets that must be equal. Where the next token is not the target, texts whose every token k places on is equal to a
target by chance would have to repeat themselves throughout."""


@memoized
def target_places(run: Run) -> Mapping[int, int | None]:
    """Places from a token to its target, by rank; ``NEXT`` also where that holds of most targets, None where targets
    are no tokens of the input, or too few.
    """
    return {rank: _most_frequent_offset(counts_2K) for rank, counts_2K in _counts(run).items()}


def _counts(run: Run) -> Mapping[int, Ints]:
    """int64 [2, places] by rank: targets compared and equal, over the Run."""
    counts: dict[int, Ints] = {}
    for (_, rank), values in run.lists("target_places").items():
        if len(values) == 2 * len(PLACES):
            counts[rank] = counts.get(rank, np.zeros((2, len(PLACES)), np.int64)) + np.reshape(values, (2, -1))
    return counts


def _most_frequent_offset(counts_2K: Ints) -> int | None:
    compared_K, equal_K = counts_2K
    at_next, enough_K = PLACES.index(NEXT), compared_K >= FEWEST
    whole_K = enough_K & (compared_K == equal_K)
    if not whole_K[at_next] and whole_K.any():
        return PLACES[int(np.argmax(whole_K))]
    return NEXT if enough_K[at_next] and 2 * equal_K[at_next] > compared_K[at_next] else None
