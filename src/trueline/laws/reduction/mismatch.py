"""One case of a gradient that is not what its reduction should make of it: the cells, the numbers and the words.

Letters: T steps, N workers, G parameter groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trueline.judge.compared_ranks import Bools, Floats, any_over
from trueline.laws.reduction.reduction import Reductions
from trueline.schema.finding import Severity

NEAR = 1e-3
"""Relative distance within which a fitted factor of float32 gradients is the number that it is taken for."""

ROWS_IN_A_ROW = 3
"""Sampled steps in a row at which the optimizer must receive the mean over N for that to be no coincidence: a
clipping factor hits 1/N, to rounding (1e-5), at one step in some ten thousand."""

_MAX_RANK_SETS = 4
"""Sets of ranks that get a Finding each; more than that are reported as one."""


@dataclass(frozen=True)
class Details:
    """Additions to the Finding of a mismatch: a sentence after its claim, more evidence, the ranks to blame instead of
    those of the cells, and the advice that comes first.
    """

    sentence: str = ""
    kinds: tuple[str, ...] = ()
    factors: Mapping[int, float] | None = None
    ranks: tuple[int, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mismatch:
    """Cells [T, N, G] of one case, with the numbers ``measured`` and ``expected`` [T, N, G] there, in ``unit``.

    ``claim`` continues the sentence "The gradient of g ... on rank r at step t."
    """

    cells: Bools
    measured: Floats
    expected: Floats
    severity: Severity = "error"

    kind: ClassVar[str]
    claim: ClassVar[str]
    unit: ClassVar[str]

    def details(self, reductions: Reductions, rows: Sequence[int], factor: float) -> Details:
        """Additions to the Finding on the steps ``rows`` of T, whose largest mismatch measures ``factor``."""
        return Details()

    def is_one_finding(self, rank_sets: Collection[tuple[int, ...]], num_workers: int) -> bool:
        """True where the sets of workers with this mismatch, as positions in N, are reported together."""
        return len(rank_sets) > _MAX_RANK_SETS


def factor_kinds(factor: float, num_ranks: int) -> tuple[str]:
    """Relation of a mean's factor to the number of ranks: not divided by it, divided once more, or another."""
    if abs(factor - num_ranks) < NEAR * num_ranks:
        return ("not-divided",)
    is_divided_again = any(abs(factor * num_ranks**power - 1) < NEAR for power in (1, 2))
    return ("divided-again",) if is_divided_again else ("other-factor",)


def on_all_workers(mask_TNG: Bools) -> Bools:
    """[T, 1, G] cells in which the mask is set for all workers."""
    return ~any_over(~mask_TNG, 1)[:, None, :]


def rows_in_a_row(hit_T: Bools) -> Bools:
    """[T] hits with ``ROWS_IN_A_ROW`` of them next to each other, or all of fewer steps."""
    length = min(ROWS_IN_A_ROW, len(hit_T))
    starts = ~any_over(~np.lib.stride_tricks.sliding_window_view(hit_T, length), 1)
    in_row_T = np.zeros_like(hit_T)
    for offset in range(length):
        in_row_T[offset : offset + len(starts)] |= starts
    return in_row_T


def lasting_rows(hit_T: Bools) -> Bools:
    """[T] hits in a row, none where there are too few steps for that to be no coincidence."""
    return rows_in_a_row(hit_T) if len(hit_T) >= ROWS_IN_A_ROW else np.zeros_like(hit_T)
