"""Steps as columns of pixels: no spike, NaN or infinity may be lost, whatever the zoom."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueline.schema.errors import InputError
from trueline.web.views.columns import IS_NAN, IS_NEG_INF, IS_POS_INF, MEASURED, columns_of, distances_from_median

CELLS = st.sampled_from([0.0, 1.0, -2.5, 7.0, np.nan, np.inf, -np.inf])


@given(
    values=st.integers(1, 90).flatmap(
        lambda num: st.lists(st.tuples(CELLS, st.booleans()), min_size=num, max_size=num)
    ),
    num_columns=st.integers(16, 40),
    gap=st.integers(1, 3),
)
def test_every_column_has_the_extremes_of_its_steps(
    values: list[tuple[float, bool]], num_columns: int, gap: int
) -> None:
    steps_T = np.arange(len(values)) * gap + 5
    values_TN = np.array([[value] for value, _ in values])
    measured_TN = np.array([[measured] for _, measured in values])
    columns = columns_of(steps_T, values_TN, measured_TN, first=None, last=None, num_columns=num_columns)

    assert len(columns.first_B) <= num_columns
    assert columns.first_B[0] == 5
    assert columns.end_B[-1] == steps_T[-1] + 1
    for column, (first, end) in enumerate(zip(columns.first_B, columns.end_B, strict=True)):
        own = [
            (value, measured) for step, (value, measured) in zip(steps_T, values, strict=True) if first <= step < end
        ]
        finite = [value for value, measured in own if measured and np.isfinite(value)]
        known = [value for value, measured in own if measured]
        expected = (min(finite), max(finite), finite[-1]) if finite else (np.nan,) * 3
        got = columns.lo_NB[0, column], columns.hi_NB[0, column], columns.last_NB[0, column]
        np.testing.assert_array_equal(got, expected)
        flags = sum(
            {
                MEASURED: bool(known),
                IS_NAN: any(np.isnan(known)),
                IS_POS_INF: any(np.isposinf(known)),
                IS_NEG_INF: any(np.isneginf(known)),
            }[bit]
            * bit
            for bit in (MEASURED, IS_NAN, IS_POS_INF, IS_NEG_INF)
        )
        assert columns.flags_NB[0, column] == flags


def test_columns_stay_what_they_are_when_the_span_moves_or_grows() -> None:
    steps_T = np.arange(1000)
    values_TN = np.random.default_rng(0).normal(size=(1000, 2))
    measured_TN = np.ones((1000, 2), dtype=bool)
    whole = columns_of(steps_T, values_TN, measured_TN, first=None, last=None, num_columns=64)
    part = columns_of(steps_T, values_TN, measured_TN, first=100, last=999, num_columns=64)

    assert whole.first_B[1] - whole.first_B[0] == part.first_B[1] - part.first_B[0] == 16
    assert set(part.first_B) <= set(whole.first_B)


def test_the_distance_is_to_the_median_of_the_ranks_and_keeps_what_is_not_finite() -> None:
    values_TN = np.array([[1.0, 2.0, 9.0], [np.nan, np.inf, 4.0], [np.nan, np.nan, np.nan]])
    measured_TN = np.array([[True, True, True], [True, True, True], [True, True, False]])

    np.testing.assert_array_equal(
        distances_from_median(values_TN, measured_TN),
        [[-1.0, 0.0, 7.0], [np.nan, np.inf, 0.0], [np.nan, np.nan, np.nan]],
    )


def test_too_few_or_too_many_columns_are_refused() -> None:
    for num_columns in (0, -1, 15, 100_000):
        with pytest.raises(InputError, match="Ask for 16 to 4096"):
            columns_of(
                np.arange(3), np.ones((3, 1)), np.ones((3, 1), bool), first=None, last=None, num_columns=num_columns
            )
