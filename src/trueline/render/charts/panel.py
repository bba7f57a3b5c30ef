"""The charts of all Runs: one panel a quantity, one chart a Run in it, all on one vertical scale.

Letters: T steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trueline.render.charts.chart import NUM_COLOURED, Chart, band_chart, workers_chart
from trueline.render.charts.downsampling import MAX_LINES
from trueline.render.charts.mark import Mark
from trueline.render.charts.path import Plot
from trueline.render.charts.scale import axis_over
from trueline.render.report.run_reading import (
    DISPERSION_QUANTITIES,
    WORKER_QUANTITIES,
    Dispersion,
    Quantity,
    RunReading,
)
from trueline.render.wording import number
from trueline.schema.text.words import counted

_HEIGHT = 150
_COMPACT_HEIGHT = 84
"""CSS pixels of a plot; the second where Runs stand side by side in the dispersion panels."""


_ABOUT = (
    "How far apart the workers are at each step. Whether that is too far, or too close, is judged by the order and the "
    "distances of the workers over all steps (dispersion-high, dispersion-low and the outlier checks), not by these "
    "curves."
)
_BAND = (
    "The band holds {percent:.0%} of standard deviations if values are normal with one spread throughout the Run. It "
    "shows steps that differ from the others, not a Run that is unusual throughout; where spread grows or falls as "
    "training goes on, healthy steps leave it too. Ranges and the mean cosine have no such band."
)


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity: a chart a Run."""

    title: str
    meaning: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True)
class ChartSection:
    """A heading with panels below it; ``empty`` instead of panels where there is nothing to draw."""

    id: str
    title: str
    lead: str
    empty: str
    compact: bool
    panels: tuple[Panel, ...]


def plot_of(reading: RunReading, *, compact: bool = False) -> Plot:
    """The box that all charts of a Run are drawn in: its first to its last step, so that they line up."""
    first, last = reading.step_range or (0, 0)
    return Plot(_COMPACT_HEIGHT if compact else _HEIGHT, first, last)


def workers_section(readings: Sequence[RunReading], marks: Sequence[list[Mark]]) -> ChartSection:
    """Loss, gradient norm and direction of every worker; ``marks`` are those of each Run's findings."""
    drawn = any(reading.step_range for reading in readings)
    panels = tuple(_workers_panel(quantity, readings, marks) for quantity in WORKER_QUANTITIES) if drawn else ()
    return ChartSection(
        id="workers",
        title="Workers over steps",
        lead=" ".join(_workers_lead(readings, panels)),
        empty="" if drawn else "No step was recorded, so there is nothing to draw.",
        compact=False,
        panels=panels,
    )


def dispersion_section(readings: Sequence[RunReading], marks: Sequence[list[Mark]]) -> ChartSection:
    """How far apart the workers are, with the band of chance around what is typical of the Run."""
    several = [reading for reading in readings if len(reading.run.ranks) > 1 and reading.step_range]
    compact = len(readings) > 1
    banded = [one.band for reading in several for one in reading.dispersions.values() if one.band is not None]
    panels = tuple(_dispersion_panel(one, readings, marks, compact=compact) for one in DISPERSION_QUANTITIES if several)
    return ChartSection(
        id="dispersion",
        title="Dispersion",
        lead=" ".join([_ABOUT, *([_BAND.format(percent=banded[0].level)] if banded else []), *_bins_words(panels)]),
        empty="" if several else "Dispersion is a matter between workers, and no Run here has steps of two or more.",
        compact=compact,
        panels=panels,
    )


def _workers_lead(readings: Sequence[RunReading], panels: Sequence[Panel]) -> list[str]:
    lead = ["What each worker measured by itself."]
    if len(readings) > 1:
        lead.append("The Runs share one vertical scale.")
    if any(mark for panel in panels for chart in panel.charts for mark in chart.marks):
        lead.append("A dotted vertical line is where the finding with that number begins.")
    most = max(len(reading.run.ranks) for reading in readings)
    if most > MAX_LINES:
        lead.append("Of many ranks, all lie in the light ribbon and the middle half in the dark one.")
    if most > NUM_COLOURED:
        lead.append("In colour are the ranks that a finding names, and those that lie far from the median.")
    return [*lead, *_bins_words(panels)]


def _bins_words(panels: Sequence[Panel]) -> list[str]:
    widest = max((chart.steps_a_bin for panel in panels for chart in panel.charts), default=1)
    if widest == 1:
        return []
    return [f"Long Runs are drawn in bins of up to {widest:,} steps: the mean over the range from smallest to largest."]


def _workers_panel(quantity: Quantity, readings: Sequence[RunReading], marks: Sequence[list[Mark]]) -> Panel:
    axis = axis_over(reading.workers[quantity.key].finite() for reading in readings)
    charts: list[Chart] = []
    for index, reading in enumerate(readings):
        chart = workers_chart(
            reading.workers[quantity.key],
            chart_id=f"{quantity.key}-{index}",
            title=reading.name,
            axis=axis,
            plot=plot_of(reading),
            decimals=quantity.decimals,
            named=reading.flagged_ranks,
        )
        if quantity.key == "cosine_others" and len(reading.run.ranks) == 1:
            chart.empty = "One worker: there is no other to compare its gradient with."
        chart.metric, chart.marks = quantity.title, marks[index]
        charts.append(chart)
    return Panel(quantity.title, quantity.meaning, tuple(charts))


def _dispersion_panel(
    quantity: Quantity, readings: Sequence[RunReading], marks: Sequence[list[Mark]], *, compact: bool
) -> Panel:
    shown = [reading.dispersions.get(quantity.key) for reading in readings]
    known = [one for one in shown if one is not None]
    bands = [np.array([one.band.low, one.band.high]) for one in known if one.band is not None]
    axis = axis_over((one.values_T for one in known), bands=bands, num_ticks=2 if compact else 4)
    charts: list[Chart] = []
    for index, (reading, one) in enumerate(zip(readings, shown, strict=True)):
        chart = band_chart(
            reading.run.steps,
            np.full(reading.run.steps.size, np.nan) if one is None else one.values_T,
            None if one is None or one.band is None else (one.band.low, one.band.high),
            chart_id=f"{quantity.key}-{index}",
            title=reading.name,
            axis=axis,
            plot=plot_of(reading, compact=compact),
            decimals=quantity.decimals,
        )
        if len(reading.run.ranks) == 1:
            chart.empty = "One worker."
        chart.metric, chart.marks = quantity.title, [] if compact else marks[index]
        if one is not None and (outside := _outside(one)):
            chart.notes.append(outside)
        charts.append(chart)
    return Panel(quantity.title, quantity.meaning, tuple(charts))


def _outside(one: Dispersion) -> str:
    """How many steps lie outside of the band, and how many would if values were normal with one spread."""
    if one.band is None:
        return ""
    known_T = one.values_T[np.isfinite(one.values_T)]
    if not known_T.any():
        return "No spread at all: the workers have equal values."
    outside = int(((known_T < one.band.low) | (known_T > one.band.high)).sum())
    expected = number((1 - one.band.level) * known_T.size, 2)
    return f"Outside at {outside:,} of {counted(known_T.size, 'step')}; about {expected} with one normal spread."
