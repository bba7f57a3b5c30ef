"""Alignment of two sequences in order, with gaps where items are missing or extra."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
IndexPairs = list[tuple[int | None, int | None]]

MAX_CELLS = 250_000
"""Most cells of the table of one alignment; longer sequences are paired near the diagonal only."""

_MIN_BAND = 16


def align_sequences(
    run_items: Sequence[Item], ref_items: Sequence[Item], score: Callable[[Item, Item], int]
) -> IndexPairs:
    """Pairs of indices, ascending on both sides, with the largest sum of ``score``; None stands for a missing partner.

    This is the global alignment of Needleman and Wunsch (1970) with free gaps. A score of 0 or less forbids a pair. Of
    alignments with equal scores, the one that pairs earlier items is returned. Time and memory grow with the product of
    the lengths, up to ``MAX_CELLS``.
    """
    num_run, num_ref = len(run_items), len(ref_items)
    starts = _diagonal_band(num_run, num_ref)
    # table[i][j - start] is the best score of an alignment of items i… of the run and j… of the reference.
    table: list[list[int]] = [list[int]() for _ in range(num_run)] + [[0] * (num_ref + 1 - starts[num_run][0])]
    for i in range(num_run - 1, -1, -1):
        table[i] = _score_row(run_items[i], ref_items, score, starts[i], table[i + 1], starts[i + 1])
    return _trace_pairs(run_items, ref_items, score, table, starts)


def _diagonal_band(num_run: int, num_ref: int) -> list[tuple[int, int]]:
    """First and last partner (or end) in the reference that is tried with each item of the run, and with its end."""
    width = max(_MIN_BAND, MAX_CELLS // max(2 * num_run, 1))
    slope = num_ref / max(num_run, 1)
    starts = [(max(0, int(i * slope) - width), min(num_ref, int((i + 1) * slope) + width)) for i in range(num_run + 1)]
    # Both ends belong to the band, so that leading and trailing items may be gaps.
    starts[0] = (0, starts[0][1])
    starts[num_run] = (starts[num_run][0], num_ref)
    return starts


def _score_row(
    item: Item,
    ref_items: Sequence[Item],
    score: Callable[[Item, Item], int],
    band: tuple[int, int],
    below_M: list[int],
    below_band: tuple[int, int],
) -> list[int]:
    start, end = band
    row = [0] * (end + 1 - start)
    for j in range(end, start - 1, -1):
        best = below_M[j - below_band[0]] if below_band[0] <= j <= below_band[1] else 0
        if j < end and row[j + 1 - start] > best:
            best = row[j + 1 - start]
        if j < len(ref_items) and below_band[0] <= j + 1 <= below_band[1]:
            pair = score(item, ref_items[j])
            if pair > 0 and pair + below_M[j + 1 - below_band[0]] > best:
                best = pair + below_M[j + 1 - below_band[0]]
        row[j - start] = best
    return row


def _trace_pairs(
    run_items: Sequence[Item],
    ref_items: Sequence[Item],
    score: Callable[[Item, Item], int],
    table: list[list[int]],
    starts: list[tuple[int, int]],
) -> IndexPairs:
    pairs: IndexPairs = []
    i = j = 0

    def best(i: int, j: int) -> int:
        start, end = starts[i]
        return table[i][j - start] if start <= j <= end else -1

    while i < len(run_items) and j < len(ref_items):
        pair = score(run_items[i], ref_items[j])
        if pair > 0 and best(i + 1, j + 1) >= 0 and pair + best(i + 1, j + 1) >= best(i, j):
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best(i + 1, j) >= best(i, j):
            pairs.append((i, None))
            i += 1
        else:
            pairs.append((None, j))
            j += 1
    return [*pairs, *((k, None) for k in range(i, len(run_items))), *((None, k) for k in range(j, len(ref_items)))]
