"""Aligns two sequences in order, with gaps where items are missing or extra."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
IndexPairs = list[tuple[int | None, int | None]]

MAX_CELLS = 250_000
"""Cells of the table of one alignment; for longer sequences only pairs near the diagonal are tried."""

_MIN_BAND = 16


def aligned(mine: Sequence[Item], theirs: Sequence[Item], score: Callable[[Item, Item], int]) -> IndexPairs:
    """Pairs of indices, ascending on both sides, whose sum of ``score`` is the largest; None stands for a missing
    partner. A score of 0 or less forbids a pair.

    The global alignment of Needleman and Wunsch (1970) with free gaps. Of alignments that score alike, one that pairs
    the earlier items. Takes time and memory in proportion to the product of the lengths, up to ``MAX_CELLS``.
    """
    num_mine, num_theirs = len(mine), len(theirs)
    starts = _band(num_mine, num_theirs)
    # table[i][j - start] is the best score of what is left from item i of mine and item j of theirs on.
    table: list[list[int]] = [list[int]() for _ in range(num_mine)] + [[0] * (num_theirs + 1 - starts[num_mine][0])]
    for i in range(num_mine - 1, -1, -1):
        table[i] = _row(mine[i], theirs, score, starts[i], table[i + 1], starts[i + 1])
    return _trace(mine, theirs, score, table, starts)


def _band(num_mine: int, num_theirs: int) -> list[tuple[int, int]]:
    """For each item of mine, and for the end, the first and last item (or the end) of theirs that is tried with it."""
    width = max(_MIN_BAND, MAX_CELLS // max(2 * num_mine, 1))
    slope = num_theirs / max(num_mine, 1)
    starts = [
        (max(0, int(i * slope) - width), min(num_theirs, int((i + 1) * slope) + width)) for i in range(num_mine + 1)
    ]
    starts[0] = (0, starts[0][1])
    starts[num_mine] = (starts[num_mine][0], num_theirs)
    return starts


def _row(
    item: Item,
    theirs: Sequence[Item],
    score: Callable[[Item, Item], int],
    own: tuple[int, int],
    below_M: list[int],
    below: tuple[int, int],
) -> list[int]:
    start, end = own
    row = [0] * (end + 1 - start)
    for j in range(end, start - 1, -1):
        best = below_M[j - below[0]] if below[0] <= j <= below[1] else 0
        if j < end and row[j + 1 - start] > best:
            best = row[j + 1 - start]
        if j < len(theirs) and below[0] <= j + 1 <= below[1]:
            pair = score(item, theirs[j])
            if pair > 0 and pair + below_M[j + 1 - below[0]] > best:
                best = pair + below_M[j + 1 - below[0]]
        row[j - start] = best
    return row


def _trace(
    mine: Sequence[Item],
    theirs: Sequence[Item],
    score: Callable[[Item, Item], int],
    table: list[list[int]],
    starts: list[tuple[int, int]],
) -> IndexPairs:
    found: IndexPairs = []
    i = j = 0

    def best(i: int, j: int) -> int:
        start, end = starts[i]
        return table[i][j - start] if start <= j <= end else -1

    while i < len(mine) and j < len(theirs):
        pair = score(mine[i], theirs[j])
        if pair > 0 and best(i + 1, j + 1) >= 0 and pair + best(i + 1, j + 1) >= best(i, j):
            found.append((i, j))
            i, j = i + 1, j + 1
        elif best(i + 1, j) >= best(i, j):
            found.append((i, None))
            i += 1
        else:
            found.append((None, j))
            j += 1
    return [*found, *((k, None) for k in range(i, len(mine))), *((None, k) for k in range(j, len(theirs)))]
