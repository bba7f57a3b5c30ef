"""Charts over steps as the shapes of an SVG, plus the numbers that the page's script reads out.

A plot is drawn in a box of ``WIDTH`` by ``height`` units that the browser stretches to any width without scaling
strokes or text. Letters: T steps, N ranks, B bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.render.charts.downsampling import MAX_LINES, Bins, Series, binned, singled_out, spread
from trueline.render.charts.mark import Mark
from trueline.render.charts.path import Plot, Shape, area_path, dot_path, line_path, tick_path
from trueline.render.charts.scale import Axis, nice_step
from trueline.render.wording import ABSENT, number, reading, steps_words

NUM_HUES = 4
NUM_COLOURED = 2 * NUM_HUES
"""Lines that differ in hue, or in hue and dash: beyond, only a few are singled out."""

_TICKS_FROM = 22.0
"""Percent of the width at either edge that is left to the first and last step's text."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a legend: its swatch, its name, and its value at the chosen step (the last one at first).

    ``series`` is the index of what the script reads the value from; None for a value that holds at all steps.
    """

    series: int | None
    name: str
    css: str
    value: str
    kind: str = "line"


@dataclass(slots=True)
class Chart:
    """What the template draws. Positions across are percent of the plot's width, positions down are plot units."""

    id: str
    title: str
    height: int
    empty: str = ""
    shapes: list[Shape] = field(default_factory=list)
    grid: list[tuple[float, str]] = field(default_factory=list)
    across: list[tuple[float, str, str]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    legend: list[Entry] = field(default_factory=list)
    at: str = ""
    notes: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    steps_a_bin: int = 1
    decimals: int | None = None
    metric: str = ""

    @property
    def crowded(self) -> bool:
        """Whether the script may add a line to the legend: there are series that have none of their own."""
        return len(self.numbers["series"]) > len(self.legend)

    @property
    def summary(self) -> str:
        """The chart in one sentence, for those who do not see it."""
        values = ", ".join(f"{entry.name} {entry.value}" for entry in self.legend)
        name = ", ".join(part for part in (self.metric, self.title) if part)
        return f"{name}, {self.at}: {values}." if values else f"{name}."


def workers_chart(
    series: Series,
    *,
    chart_id: str,
    title: str,
    axis: Axis | None,
    plot: Plot,
    named: tuple[int, ...] = (),
    decimals: int | None = None,
) -> Chart:
    """One quantity of every rank over steps: a line a rank, or a ribbon and a few lines above ``MAX_LINES`` ranks.

    ``named`` are ranks that a Finding names: they are drawn on top and never folded into the ribbon. Read-outs have
    ``decimals``, or else four significant digits.
    """
    chart = Chart(chart_id, title, plot.height, decimals=decimals)
    measured = series.measured_only()
    if axis is None or measured.steps_T.size == 0:
        chart.empty = _nothing_to_draw(measured)
        return chart
    bins = binned(measured)
    _frame(chart, bins, plot, axis)
    if len(series.ranks) <= NUM_COLOURED:
        _draw_all(chart, bins, series.ranks, named, plot, axis)
    else:
        singled = singled_out(measured, named)
        if len(series.ranks) > MAX_LINES:
            _draw_ribbon(chart, measured, plot, axis)
        else:
            _draw_quiet(chart, bins, series.ranks, singled, plot, axis)
        _draw_singled(chart, bins, series.ranks, singled, plot, axis)
        _read_extremes(chart, measured)
    _note_nonfinite(chart, measured, bins, plot)
    return chart


def band_chart(
    steps_T: NDArray[np.int64],
    values_T: Floats,
    band: tuple[float, float] | None,
    *,
    chart_id: str,
    title: str,
    axis: Axis | None,
    plot: Plot,
    decimals: int | None = None,
) -> Chart:
    """One number a step, NaN where there is none, against a band (low, high) where one is known."""
    chart = Chart(chart_id, title, plot.height, decimals=decimals)
    known_T = np.isfinite(values_T)
    if axis is None or not known_T.any():
        chart.empty = "No step has finite values of two workers or more."
        return chart
    bins = binned(Series(steps_T[known_T], values_T[known_T, None], known_T[known_T, None], (0,)))
    _frame(chart, bins, plot, axis)
    if band is not None:
        edges = np.array([plot.first_step, plot.last_step], dtype=np.float64)
        low, high = (np.full(2, edge) for edge in band)
        chart.shapes.append(Shape(area_path(edges, low, high, plot, axis), "band"))
    _draw_line(chart, bins, 0, plot, axis, css="value", index=None)
    _add_series(chart, "value", "value", bins.lo_BN[:, 0], bins.hi_BN[:, 0])
    if band is not None:
        chart.legend.append(Entry(None, "band", "band", f"{number(band[0], 3)} to {number(band[1], 3)}", "band"))
    return chart


def _nothing_to_draw(measured: Series) -> str:
    if measured.steps_T.size == 0:
        return "Not measured."
    return f"Not finite (NaN or inf) at every one of {measured.steps_T.size:,} measured steps."


def _middle(bins: Bins) -> Floats:
    return (bins.first_B + bins.last_B) / 2.0


def _frame(chart: Chart, bins: Bins, plot: Plot, axis: Axis) -> None:
    chart.grid = [(round(plot.height * (1 - height), 1), text) for height, text in axis.labels()]
    chart.across = _step_ticks(plot)
    chart.at = steps_words(int(bins.first_B[-1]), int(bins.last_B[-1]))
    chart.numbers = {
        "first": bins.first_B.tolist(),
        "x": [round(float(x), 2) for x in plot.percent(_middle(bins))],
        "axis": [axis.low, axis.high, axis.log],
        "series": [],
    }
    if (bins.last_B > bins.first_B).any():
        chart.numbers["last"] = bins.last_B.tolist()
        chart.steps_a_bin = int((bins.last_B - bins.first_B).max()) + 1
    if chart.decimals is not None:
        chart.numbers["decimals"] = chart.decimals
    if axis.log:
        chart.notes.append("Logarithmic scale.")


def _step_ticks(plot: Plot) -> list[tuple[float, str, str]]:
    first, last = plot.first_step, plot.last_step
    if last == first:
        return [(50.0, f"step {first}", "middle")]
    step = max(1, int(nice_step(last - first, 2)))
    inner = (
        (100.0 * (value - first) / (last - first), f"{value:,}")
        for value in range(-(-first // step) * step, last, step)
    )
    ticks = [(at, text, "middle") for at, text in inner if _TICKS_FROM < at < 100 - _TICKS_FROM]
    return [(0.0, f"step {first:,}", "start"), *ticks, (100.0, f"{last:,}", "end")]


def _add_series(
    chart: Chart,
    name: str,
    css: str,
    lo_B: Floats,
    hi_B: Floats,
    *,
    listed: bool = True,
    nonfinite_B: NDArray[np.bool_] | None = None,
    who_B: Sequence[int] | None = None,
) -> int:
    """Hand a series to the script and, if ``listed``, to the legend; the index it has there is returned."""
    bad_B = np.zeros(lo_B.size, dtype=bool) if nonfinite_B is None else nonfinite_B
    entry: dict[str, Any] = {"name": name, "lo": _short(lo_B, bad_B)}
    if (hi_B > lo_B).any():
        entry["hi"] = _short(hi_B, bad_B)
    if who_B is not None:
        entry["who"] = list(who_B)
    chart.numbers["series"].append(entry)
    index = len(chart.numbers["series"]) - 1
    if listed:
        label = f"{name} r{who_B[-1]}" if who_B is not None else name
        chart.legend.append(Entry(index, label, css, _reading(entry, -1, chart.decimals)))
    return index


def _short(values_B: Floats, bad_B: NDArray[np.bool_]) -> list[float | str | None]:
    """Four significant digits, ``"NaN"`` where what was measured is not finite, None where nothing was."""
    return [
        float(f"{value:.4g}") if np.isfinite(value) else ("NaN" if bad else None)
        for value, bad in zip(values_B.tolist(), bad_B.tolist(), strict=True)
    ]


def _reading(entry: dict[str, Any], index: int, decimals: int | None) -> str:
    lo, hi = entry["lo"][index], entry.get("hi", entry["lo"])[index]
    if lo is None:
        return ABSENT
    if isinstance(lo, str):
        return lo
    return reading(lo, decimals) if lo == hi else f"{reading(lo, decimals)} to {reading(hi, decimals)}"


def _draw_line(chart: Chart, bins: Bins, column: int, plot: Plot, axis: Axis, *, css: str, index: int | None) -> None:
    """The means of the bins as a line, over the range that each spans where it holds several steps."""
    middle_B, lo_B, hi_B = _middle(bins), bins.lo_BN[:, column], bins.hi_BN[:, column]
    if (hi_B > lo_B).any():
        chart.shapes.append(Shape(area_path(middle_B, lo_B, hi_B, plot, axis), f"range {css}"))
    for path, kind in (
        (line_path(middle_B, bins.mean_BN[:, column], plot, axis), "line"),
        (dot_path(middle_B, bins.mean_BN[:, column], plot, axis), "line dot"),
    ):
        if path:
            chart.shapes.append(Shape(path, f"{kind} {css}", index))


def _draw_all(chart: Chart, bins: Bins, ranks: tuple[int, ...], named: tuple[int, ...], plot: Plot, axis: Axis) -> None:
    on_top = [rank in named and len(named) < len(ranks) for rank in ranks]
    for column, rank in enumerate(ranks):
        lo_B, hi_B, nonfinite_B = bins.lo_BN[:, column], bins.hi_BN[:, column], bins.nonfinite_BN[:, column]
        css = _hue(column) + (" named" if on_top[column] else "")
        _add_series(chart, f"r{rank}", css, lo_B, hi_B, nonfinite_B=nonfinite_B)
    for column in sorted(range(len(ranks)), key=on_top.__getitem__):
        css = chart.legend[column].css
        _draw_line(chart, bins, column, plot, axis, css=css, index=column)


def _hue(index: int) -> str:
    return f"s{index % NUM_HUES}" + (" dashed" if index >= NUM_HUES else "")


def _draw_quiet(
    chart: Chart, bins: Bins, ranks: tuple[int, ...], singled: tuple[int, ...], plot: Plot, axis: Axis
) -> None:
    for column, rank in enumerate(ranks):
        if rank not in singled:
            lo_B, hi_B = bins.lo_BN[:, column], bins.hi_BN[:, column]
            index = _add_series(
                chart, f"r{rank}", "quiet", lo_B, hi_B, listed=False, nonfinite_B=bins.nonfinite_BN[:, column]
            )
            _draw_line(chart, bins, column, plot, axis, css="quiet", index=index)


def _draw_ribbon(chart: Chart, measured: Series, plot: Plot, axis: Axis) -> None:
    over = spread(measured)
    columns_T5 = np.stack([over.lowest_T, over.lower_T, over.median_T, over.upper_T, over.highest_T], axis=1)
    bins = binned(Series(measured.steps_T, columns_T5, np.ones(columns_T5.shape, dtype=bool), (0, 1, 2, 3, 4)))
    middle_B = _middle(bins)
    chart.shapes.append(Shape(area_path(middle_B, bins.lo_BN[:, 0], bins.hi_BN[:, 4], plot, axis), "ribbon outer"))
    chart.shapes.append(Shape(area_path(middle_B, bins.lo_BN[:, 1], bins.hi_BN[:, 3], plot, axis), "ribbon inner"))
    chart.shapes.append(Shape(line_path(middle_B, bins.mean_BN[:, 2], plot, axis), "line median"))


def _draw_singled(
    chart: Chart, bins: Bins, ranks: tuple[int, ...], singled: tuple[int, ...], plot: Plot, axis: Axis
) -> None:
    for order, rank in enumerate(singled):
        column = ranks.index(rank)
        lo_B, hi_B = bins.lo_BN[:, column], bins.hi_BN[:, column]
        index = _add_series(chart, f"r{rank}", _hue(order), lo_B, hi_B, nonfinite_B=bins.nonfinite_BN[:, column])
        _draw_line(chart, bins, column, plot, axis, css=_hue(order), index=index)


def _read_extremes(chart: Chart, measured: Series) -> None:
    over = spread(measured)
    columns_T3 = np.stack([over.lowest_T, over.median_T, over.highest_T], axis=1)
    bins = binned(Series(measured.steps_T, columns_T3, np.ones(columns_T3.shape, dtype=bool), (0, 1, 2)))
    low_who_B = _holders(over.lowest_T, over.lowest_rank_T, measured.steps_T, bins, np.fmin)
    high_who_B = _holders(over.highest_T, over.highest_rank_T, measured.steps_T, bins, np.fmax)
    _add_series(chart, "lowest", "text", bins.lo_BN[:, 0], bins.lo_BN[:, 0], who_B=low_who_B)
    _add_series(chart, "median", "median", bins.lo_BN[:, 1], bins.hi_BN[:, 1])
    _add_series(chart, "highest", "text", bins.hi_BN[:, 2], bins.hi_BN[:, 2], who_B=high_who_B)


def _holders(
    values_T: Floats, ranks_T: NDArray[np.int64], steps_T: NDArray[np.int64], bins: Bins, extreme: np.ufunc
) -> list[int]:
    """The rank that holds the extreme of each bin, where ``ranks_T`` hold those of the steps."""
    starts_B = np.searchsorted(steps_T, bins.first_B).tolist()
    ends_B = np.searchsorted(steps_T, bins.last_B, side="right").tolist()
    pieces = ((values_T[start:end], ranks_T[start:end]) for start, end in zip(starts_B, ends_B, strict=True))
    return [int(ranks[np.argmax(values == extreme.reduce(values))]) for values, ranks in pieces]


def _note_nonfinite(chart: Chart, measured: Series, bins: Bins, plot: Plot) -> None:
    bad_TN = measured.measured_TN & ~np.isfinite(measured.values_TN)
    if not bad_TN.any():
        return
    chart.shapes.append(Shape(tick_path(_middle(bins)[bins.nonfinite_BN.any(axis=1)], plot), "nonfinite"))
    row = int(np.argmax(bad_TN.any(axis=1)))
    rank = measured.ranks[int(np.argmax(bad_TN[row]))]
    where = f"{int(bad_TN.sum()):,} of {int(measured.measured_TN.sum()):,} values"
    chart.notes.append(
        f"Not finite (NaN or inf): {where}, first at step {int(measured.steps_T[row])} on rank {rank}; "
        "ticks at the top."
    )
