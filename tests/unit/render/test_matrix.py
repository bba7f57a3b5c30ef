"""Cells of the cosine matrix read well on any of their colours, and the diagonal claims nothing."""

import re

import numpy as np
import pytest

from trueline.analyze.workers.dispersion import CosineMatrix
from trueline.render.charts.matrix import LEVELS, Cell, cell, colour_rules, luminance, matrix_numbers, matrix_table


def matrix_of(num_ranks: int) -> CosineMatrix:
    cosines = np.linspace(-1, 1, num_ranks * num_ranks).reshape(num_ranks, num_ranks)
    return CosineMatrix(
        5, tuple(range(num_ranks)), (cosines + cosines.T) / 2, np.full(cosines.shape, 0.016), exact=False
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_on_every_colour_meets_wcag_aa(theme: str) -> None:
    light, dark = colour_rules().split("@media")
    rules = re.findall(r"background:#(\w{6});color:#(\w)\w\w", light if theme == "light" else dark)

    assert len(rules) == 2 * (LEVELS + 1)
    for background, text in rules:
        ground = luminance(tuple(bytes.fromhex(background)))
        ink = 1.0 if text == "f" else 0.0
        assert (max(ground, ink) + 0.05) / (min(ground, ink) + 0.05) >= 4.5


def test_zero_has_no_colour_and_signs_mirror_each_other() -> None:
    assert cell(0, 3).css == "p0"
    assert (cell(500, 3).css, cell(-500, 3).css) == ("p10", "n10")
    assert (cell(1001, 3).css, cell(-1000, 3).text) == ("p20", "−1.000")
    assert cell(None, 3) == Cell("NaN", "none")


@pytest.mark.parametrize(("thousandths", "text"), [(125, "0.13"), (-125, "−0.13"), (-4, "0.00"), (1000, "1.00")])
def test_two_decimals_round_as_in_the_script(thousandths: int, text: str) -> None:
    assert cell(thousandths, 2).text == text


def test_diagonal_is_left_out() -> None:
    rows = matrix_table(matrix_of(4)).rows

    assert all(rows[index][index].text == "" and rows[index][index].css == "own" for index in range(4))


def test_values_are_written_only_where_they_fit() -> None:
    assert matrix_table(matrix_of(16)).written
    assert not matrix_table(matrix_of(64)).written


def test_numbers_are_the_upper_triangle_in_thousandths() -> None:
    matrix = matrix_of(3)
    matrix.cosines[0, 2] = np.nan

    (numbers,) = matrix_numbers([matrix])

    assert numbers["step"] == 5
    assert numbers["cells"] == [round(matrix.cosines[0, 1] * 1000), None, round(matrix.cosines[1, 2] * 1000)]
