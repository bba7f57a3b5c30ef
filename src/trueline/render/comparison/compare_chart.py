"""Charts of a comparison: differences in times of what rounding explains, along a step and over steps.

Letters: P points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.analyze.compare.result import ComparedRow, Judgement
from trueline.render.charts.chart import Chart, Entry
from trueline.render.charts.mark import Mark
from trueline.render.charts.path import WIDTH, Plot, Shape, line_path
from trueline.render.charts.scale import Axis
from trueline.render.comparison.compare_rows import JUDGEMENT_WORDS, place_text, same_row
from trueline.render.wording import number

HEIGHT = 170
_DRAWN: tuple[Judgement, ...] = ("equal", "within", "propagated", "beyond")
"""Judgements in the order in which they are drawn, the most telling one on top."""

_FLOOR, _CEILING = 1e-3, 1e12
"""Times of what rounding explains that the axis shows at most; what lies beyond sits at its edge."""

_GRAIN = (12, 15)
"""Tenths of plot units, across and down, within which two dots of one judgement are one: about a pixel each."""

_TICK_GAP = 16.0
"""Percent of the width that a name on the axis takes at least."""

PHASES: Mapping[str, str] = {
    "fwd": "Forward",
    "bwd": "Backward",
    "param": "Parameters",
    "grad": "Gradients of parameters",
    "opt": "Optimizer",
    "comm": "Collectives",
    "save": "Saved by hand",
}
"""Phases with the words for them, in the order in which they are drawn."""

Floats = NDArray[np.float64]


def times_axis(times: Sequence[float]) -> Axis:
    """The logarithmic axis for all of ``times`` that are finite and above zero, with 1 and 10 in it."""
    known = [value for value in times if 0 < value < math.inf]
    low = max(min([*known, 0.1]), _FLOOR)
    high = min(max([*known, 10.0]), _CEILING)
    return decades(low, high)


def decades(low: float, high: float) -> Axis:
    """A logarithmic axis from ``low`` to ``high`` with ticks at powers of ten, both above zero."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    every = max(1, math.ceil((last - first + 1) / 6))
    ticks = tuple(10.0**power for power in range(first, last + 1) if power % every == 0)
    return Axis(10.0**first, 10.0**last, True, ticks)


def phase_charts(rows: Sequence[ComparedRow], first: ComparedRow | None) -> list[Chart]:
    """One chart for each phase of the ``rows`` of one step and rank: every value, in the order of execution."""
    by_phase: dict[str, list[ComparedRow]] = {}
    for row in rows:
        by_phase.setdefault(_phase(row), []).append(row)
    axis = times_axis([row.times for row in rows if row.times is not None])
    known = [phase for phase in PHASES if phase in by_phase]
    order = [*known, *sorted(set(by_phase) - set(known))]
    return [_phase_chart(phase, by_phase[phase], axis, first) for phase in order]


def growth_chart(chart_id: str, title: str, values: Mapping[int, float], text: str) -> Chart:
    """One non-negative number by step, on a logarithmic axis; ``text`` precedes each value that is read out."""
    chart = Chart(chart_id, title, HEIGHT, numbers={"series": []})
    known = [value for value in values.values() if 0 < value < math.inf]
    if not known:
        chart.empty = "It is zero at every step."
        return chart
    axis, steps = decades(min(known), max(known)), sorted(values)
    plot = Plot(HEIGHT, steps[0], steps[-1])
    steps_P = np.array(steps, dtype=np.float64)
    values_P = np.clip(np.array([values[step] for step in steps]), axis.low, axis.high)
    _frame(chart, axis)
    chart.across = [(0.0, f"step {steps[0]:,}", "start"), (100.0, f"{steps[-1]:,}", "end")]
    chart.shapes = [
        Shape(line_path(steps_P, values_P, plot, axis), "line value"),
        Shape(_dots(plot.percent(steps_P) * 100, _down(values_P, axis)), "line dot value"),
    ]
    texts = [f"step {step}: {text}{number(values[step], 3)}" for step in steps]
    chart.numbers["points"] = _points(plot.percent(steps_P) * 100, _down(values_P, axis), texts)
    return chart


def _phase_chart(phase: str, rows: Sequence[ComparedRow], axis: Axis, first: ComparedRow | None) -> Chart:
    chart = Chart(f"phase-{phase}", PHASES.get(phase, phase), HEIGHT, numbers={"series": []})
    placed = [row for row in rows if row.judgement != "not-comparable"]
    if not placed:
        chart.empty = "No value of this phase could be compared."
        return chart
    _frame(chart, axis)
    across_P = _across(placed)
    down_P = _down(np.array([_height(row) for row in placed]), axis)
    chart.across = _names(placed, across_P)
    line = round(HEIGHT * 10 * (1 - float(axis.fraction(np.array([1.0]))[0])))
    chart.shapes.append(Shape(f"M0 {line}h{WIDTH * 10}", "line explained"))
    shown: list[int] = []
    for judgement in _DRAWN:
        at = [place for place, row in enumerate(placed) if row.judgement == judgement]
        drawn = _distinct(at, across_P, down_P)
        if at:
            chart.shapes.append(Shape(_dots(across_P[drawn], down_P[drawn]), f"line dot j-{judgement}"))
            chart.legend.append(Entry(None, JUDGEMENT_WORDS[judgement], f"dot j-{judgement}", f"{len(at):,}"))
        shown += drawn if judgement != "equal" else []
    chart.numbers["points"] = _points(across_P[shown], down_P[shown], [_readout(placed[place]) for place in shown])
    chart.marks = [_first_mark(float(across_P[place])) for place, row in enumerate(placed) if _is(row, first)]
    unseen = len(rows) - len(placed)
    chart.notes = [f"Not drawn: {unseen:,} that cannot be compared."] if unseen else []
    return chart


def _frame(chart: Chart, axis: Axis) -> None:
    chart.grid = [(round(HEIGHT * (1 - height), 1), _short(text)) for height, text in axis.labels()]


def _short(text: str) -> str:
    """A power of ten in as little room as there is beside a plot: ``1e5`` for ``100,000``."""
    return f"1e{text.count('0')}" if len(text) > 6 and text.startswith("1") and "," in text else text


def _height(row: ComparedRow) -> float:
    """What is drawn of a row: 0 for equal ones, infinity where a difference is beyond any rounding."""
    if row.judgement == "equal":
        return 0.0
    if row.times is None or math.isnan(row.times):
        return math.inf if row.judgement in ("beyond", "propagated") else 0.0
    return row.times


def _across(rows: Sequence[ComparedRow]) -> Floats:
    """[P] 0 to 10,000, in the order of execution and a little away from both edges."""
    return (np.arange(len(rows)) + 0.5) * (WIDTH * 10 / len(rows))


def _down(values_P: Floats, axis: Axis) -> Floats:
    """[P] tenths of plot units from the top."""
    return np.rint((1.0 - axis.fraction(np.minimum(values_P, axis.high))) * HEIGHT * 10)


def _distinct(places: Sequence[int], across_P: Floats, down_P: Floats) -> list[int]:
    """Those of ``places`` whose dots are not drawn over by one before."""
    seen: dict[tuple[int, int], int] = {}
    for place in places:
        seen.setdefault((int(across_P[place]) // _GRAIN[0], int(down_P[place]) // _GRAIN[1]), place)
    return list(seen.values())


def _dots(across_P: Floats, down_P: Floats) -> str:
    pairs = zip(np.rint(across_P).astype(int).tolist(), np.rint(down_P).astype(int).tolist(), strict=True)
    return "".join(f"M{x} {y}h0" for x, y in pairs)


def _points(across_P: Floats, down_P: Floats, texts: Sequence[str]) -> dict[str, Any]:
    """For the script: place across in percent and down in plot units of each point, and what it says."""
    return {
        "x": [round(float(x) / 100, 2) for x in across_P],
        "y": [round(float(y) / 10, 1) for y in down_P],
        "text": list(texts),
    }


def _readout(row: ComparedRow) -> str:
    times = "" if row.times is None else f", {number(row.times, 3)} times"
    return f"{place_text(row)}: {JUDGEMENT_WORDS[row.judgement]}{times}"


def _names(rows: Sequence[ComparedRow], across_P: Floats) -> list[tuple[float, str, str]]:
    """Where on the axis another part of the model begins, as far as there is room for its name."""
    ticks: list[tuple[float, str, str]] = []
    before, free = "", 0.0
    for row, across in zip(rows, (across_P / 100).tolist(), strict=True):
        part = _part(row)
        if part != before and part and free <= across <= 100 - _TICK_GAP:
            ticks.append((round(across, 2), part, "start"))
            free = across + _TICK_GAP
        before = part
    return ticks


def _part(row: ComparedRow) -> str:
    """The first names of a site's module, up to a number: ``layers.1``, ``embed``."""
    name = (row.site or row.ref_site or "").split("/", 3)[-1].split("#", 1)[0]
    pieces = name.split(".")
    number_at = next((place for place, piece in enumerate(pieces[:4]) if piece.isdigit()), 0)
    part = ".".join(pieces[: number_at + 1])
    return part if len(part) <= 18 else "…" + part[-17:]


def _first_mark(across: float) -> Mark:
    at = round(across / 100, 2)
    return Mark(at, "first", "error", "start" if at < 8 else "end" if at > 92 else "middle")


def _is(row: ComparedRow, first: ComparedRow | None) -> bool:
    return first is not None and same_row(row, first)


def _phase(row: ComparedRow) -> str:
    return phase_of(row.site or row.ref_site or "")


def phase_of(site: str) -> str:
    """The phase of a site's text form."""
    pieces = site.split("/", 3)
    return pieces[2] if len(pieces) == 4 else "other"
