"""The table of cosines between workers: its cells at one step, the numbers for the other steps, and its colours.

Letters: N ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from trueline.analyze.workers.dispersion import CosineMatrix

LEVELS = 20
"""Shades on each side of zero: a cosine of 1 / LEVELS is one shade."""
_MAX_WRITTEN = 16
"""Ranks up to which a cell has room for its value."""

Colour = tuple[int, int, int]
_LIGHT: tuple[Colour, Colour, Colour] = ((255, 255, 255), (23, 73, 168), (176, 66, 8))
_DARK: tuple[Colour, Colour, Colour] = ((27, 31, 35), (120, 170, 250), (244, 172, 72))
"""Colour at 0, at +1 and at −1. Blue against orange stays apart in every common colour blindness."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its text (three decimals, fewer where there is little room) and the class of its colour."""

    text: str
    css: str


@dataclass(frozen=True, slots=True)
class MatrixTable:
    """The cells of one matrix as rows, labels of the ranks, and whether the cells have room for their text."""

    ranks: tuple[int, ...]
    rows: tuple[tuple[Cell, ...], ...]
    written: bool
    decimals: int


def matrix_table(matrix: CosineMatrix) -> MatrixTable:
    """``matrix`` as a table; the diagonal is left out, as it is 1 for whatever gradient."""
    num_ranks = len(matrix.ranks)
    decimals = 3 if num_ranks <= 6 else 2
    rows = tuple(
        tuple(
            Cell("", "own") if row == column else cell(_thousandths(matrix.cosines[row, column]), decimals)
            for column in range(num_ranks)
        )
        for row in range(num_ranks)
    )
    return MatrixTable(matrix.ranks, rows, num_ranks <= _MAX_WRITTEN, decimals)


def cell(thousandths: int | None, decimals: int) -> Cell:
    """The cell of one cosine, as the script makes it too; None, not finite, has its name for a text and no colour."""
    if thousandths is None:
        return Cell("NaN", "none")
    level = int(min(abs(thousandths), 1000) * LEVELS / 1000 + 0.5)
    return Cell(cosine_text(thousandths, decimals), f"{'p' if thousandths >= 0 else 'n'}{level}")


def cosine_text(thousandths: int, decimals: int) -> str:
    """A cosine with up to three decimals, halves away from zero as in the script, without a sign if it is all zeros."""
    unit = 10 ** (3 - decimals)
    rounded = int(abs(thousandths) / unit + 0.5) * unit
    return f"{'−' if thousandths < 0 and rounded else ''}{rounded / 1000:.{decimals}f}"


def largest_error(matrix: CosineMatrix) -> float:
    """The largest standard error of a cell, to two significant digits; 0.0 where no cell is finite."""
    finite = matrix.standard_errors[np.isfinite(matrix.standard_errors)]
    return float(f"{finite.max():.2g}") if finite.size else 0.0


def _thousandths(cosine: float) -> int | None:
    return round(float(cosine) * 1000) if np.isfinite(cosine) else None


def matrix_numbers(matrices: Sequence[CosineMatrix]) -> list[dict[str, Any]]:
    """Every matrix for the script: step, error, and its upper triangle row by row in thousandths (None: not finite)."""
    return [
        {
            "step": matrix.step,
            "error": largest_error(matrix),
            "exact": matrix.exact,
            "cells": [_thousandths(cosine) for cosine in matrix.cosines[np.triu_indices(len(matrix.ranks), 1)]],
        }
        for matrix in matrices
    ]


def colour_rules() -> str:
    """CSS rules for the cell classes ``p0``…``p20`` and ``n1``…``n20`` in light and dark.

    Text is black or white, whichever contrasts more: at least 4.58 to 1 on any colour, as the two cross at √21.
    """
    return "\n".join([*_rules(_LIGHT), "@media (prefers-color-scheme: dark) {", *_rules(_DARK), "}"])


def _rules(ends: tuple[Colour, Colour, Colour]) -> list[str]:
    zero, positive, negative = ends
    rules: list[str] = []
    for letter, end in (("p", positive), ("n", negative)):
        for level in range(LEVELS + 1):
            share = level / LEVELS
            mixed = tuple(round((1 - share) * low + share * high) for low, high in zip(zero, end, strict=True))
            text = "#000" if luminance(mixed) > 0.1791 else "#fff"
            rules.append(f".{letter}{level}{{background:#{bytes(mixed).hex()};color:{text}}}")
    return rules


def luminance(colour: Sequence[int]) -> float:
    """Relative luminance of an sRGB colour (0–255 each), as WCAG 2.2 defines it.

    Black and white text contrast equally with a colour of 0.1791.
    """
    linear = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
