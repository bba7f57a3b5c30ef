"""A chart draws every rank or a ribbon of them, shows gaps and NaN as such, and says when there is nothing."""

import re

import numpy as np
import pytest

from trueline.render.charts.chart import Chart, band_chart, workers_chart
from trueline.render.charts.downsampling import Series
from trueline.render.charts.mark import marks
from trueline.render.charts.path import Plot, area_path, dot_path, line_path
from trueline.render.charts.scale import Axis, axis_over
from trueline.schema.finding import Finding

PLOT = Plot(100, 0, 10)
AXIS = Axis(0.0, 10.0, False, (0.0, 5.0, 10.0))


def points(path: str) -> list[tuple[int, int]]:
    """The corners of a path in tenths of plot units, from its M, l and v commands."""
    x = y = 0
    found: list[tuple[int, int]] = []
    for letter, numbers in re.findall(r"([Mlvh])([^Mlvhz]*)", path):
        values = [int(value) for value in re.findall(r"-?\d+", numbers)]
        if letter == "M":
            x, y = values
        elif letter == "l":
            x, y = x + values[0], y + values[1]
        elif letter == "v":
            y += values[0]
        found.append((x, y))
    return found


def series_of(values_TN: np.ndarray) -> Series:
    num_steps, num_ranks = values_TN.shape
    return Series(np.arange(num_steps), values_TN, np.ones(values_TN.shape, dtype=bool), tuple(range(num_ranks)))


def chart_of(values_TN: np.ndarray, *, named: tuple[int, ...] = ()) -> Chart:
    series = series_of(values_TN)
    plot = Plot(100, 0, len(values_TN) - 1)
    return workers_chart(series, chart_id="c", title="Loss", axis=axis_over([values_TN]), plot=plot, named=named)


def test_line_goes_through_every_value() -> None:
    values = np.array([0.0, 5.0, 10.0])

    assert points(line_path(np.array([0.0, 5.0, 10.0]), values, PLOT, AXIS)) == [
        (0, 1000),
        (5000, 500),
        (10000, 0),
    ]


def test_area_touches_both_ends_of_a_bin() -> None:
    path = area_path(np.array([0.0, 10.0]), np.array([1.0, 2.0]), np.array([1.0, 9.0]), PLOT, AXIS)

    assert {(10000, 800), (10000, 100)} <= set(points(path))


def test_long_series_is_a_mean_over_its_range() -> None:
    values = np.zeros((5_000, 1))
    values[2_500] = 1.0
    chart = chart_of(values)

    assert [shape.css for shape in chart.shapes] == ["range s0", "line s0"]
    top = min(down for _, down in points(chart.shapes[0].path))
    assert top < min(down for _, down in points(chart.shapes[1].path))


def test_line_breaks_at_a_gap_and_a_lone_value_becomes_a_dot() -> None:
    steps, values = np.arange(6.0), np.array([1.0, 2.0, np.nan, 3.0, np.nan, np.nan])

    assert line_path(steps, values, PLOT, AXIS).count("M") == 1
    assert points(dot_path(steps, values, PLOT, AXIS)) == [(3000, 700), (3000, 700)]


def test_area_closes_one_piece_for_each_stretch() -> None:
    low, high = np.array([1.0, 1.0, np.nan, 1.0]), np.array([2.0, 2.0, 2.0, 2.0])

    assert area_path(np.arange(4.0), low, high, PLOT, AXIS).count("z") == 2


@pytest.mark.parametrize(
    ("num_ranks", "lines", "ribbons"), [(1, 1, 0), (4, 4, 0), (8, 8, 0), (12, 12, 0), (17, 1, 2), (64, 1, 2)]
)
def test_ranks_are_lines_until_there_are_too_many(num_ranks: int, lines: int, ribbons: int) -> None:
    chart = chart_of(np.random.default_rng(0).normal(size=(50, num_ranks)))
    kinds = [shape.css.split()[0] for shape in chart.shapes]

    assert (kinds.count("line"), kinds.count("ribbon")) == (lines, ribbons)


def test_outlier_among_64_ranks_has_its_own_line_and_legend() -> None:
    values = np.random.default_rng(0).normal(size=(50, 64))
    values[:, 37] += 12.0

    chart = chart_of(values)

    assert "r37" in [entry.name for entry in chart.legend]
    assert f"highest r{37}" in [entry.name for entry in chart.legend]


def test_ranks_that_a_finding_names_are_marked_in_the_legend() -> None:
    chart = chart_of(np.random.default_rng(0).normal(size=(50, 4)), named=(2,))

    assert [entry.name for entry in chart.legend if "named" in entry.css] == ["r2"]
    assert [shape.series for shape in chart.shapes if "named" in shape.css] == [2]


def test_no_two_of_eight_ranks_look_alike() -> None:
    chart = chart_of(np.random.default_rng(0).normal(size=(50, 8)))

    assert len({entry.css for entry in chart.legend}) == 8


def test_nan_is_read_out_marked_and_noted() -> None:
    values = np.ones((50, 4))
    values[20:, 3] = np.nan

    chart = chart_of(values)

    assert [entry.value for entry in chart.legend] == ["1.000", "1.000", "1.000", "NaN"]
    assert any(shape.css == "nonfinite" for shape in chart.shapes)
    assert "first at step 20 on rank 3" in chart.notes[0]


def test_nan_everywhere_and_not_measured_are_said_not_drawn() -> None:
    nothing = np.full((50, 4), np.nan)
    unmeasured = Series(np.arange(50), nothing, np.zeros(nothing.shape, dtype=bool), (0, 1, 2, 3))
    absent = workers_chart(unmeasured, chart_id="c", title="Loss", axis=None, plot=PLOT)

    assert chart_of(nothing).empty == "Not finite (NaN or inf) at every one of 50 measured steps."
    assert absent.empty == "Not measured."


def test_axis_is_logarithmic_where_a_spike_would_flatten_the_rest() -> None:
    values = np.ones(100)
    values[50] = 1e6
    axis = axis_over([values])

    assert axis is not None
    assert axis.log
    assert axis.fraction(np.array([1.0, 1e6])).tolist() == pytest.approx([0.04 / 1.08, 1.04 / 1.08])


def test_axis_keeps_the_data_readable_beside_a_far_wider_band() -> None:
    axis = axis_over([np.array([1.0, 1.2])], bands=[np.array([-1e6]), np.array([1e6])])

    assert axis is not None
    assert axis.low > -1.0
    assert axis.high < 2.0


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [-1e-12, 1e-12], [1e300, -1e300]])
def test_axis_survives_constant_tiny_and_huge_values(values: list[float]) -> None:
    axis = axis_over([np.array(values)])

    assert axis is not None
    assert axis.low < axis.high
    assert all(np.isfinite(height) for height, _ in axis.labels())


def test_band_is_drawn_and_read_out() -> None:
    steps = np.arange(20)
    chart = band_chart(steps, np.full(20, 0.5), (0.1, 0.9), chart_id="d", title="d", axis=AXIS, plot=PLOT)

    assert [(entry.name, entry.value) for entry in chart.legend] == [("value", "0.5000"), ("band", "0.1 to 0.9")]
    assert [shape.css for shape in chart.shapes] == ["band", "line value"]


def test_findings_that_begin_together_share_a_mark_of_the_worst() -> None:
    findings = [
        (1, Finding("a", "warning", "", step_first=0)),
        (2, Finding("b", "error", "", step_first=0)),
        (3, Finding("c", "info", "", step_first=9)),
        (4, Finding("d", "error", "", step_first=None)),
        (5, Finding("e", "error", "", step_first=99)),
    ]

    assert [(mark.text, mark.severity, mark.at) for mark in marks(findings, PLOT)] == [
        ("1, 2", "error", 0.0),
        ("3", "info", 90.0),
    ]
