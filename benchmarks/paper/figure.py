"""The figure of the documentation page: three dispersions over steps, one column a reading, as one SVG."""

from __future__ import annotations

import html
from itertools import product

import numpy as np
from benchmarks.paper.cells import LIBRARY, PAPER, READINGS, Cell
from benchmarks.paper.path import Plot, area_path, line_path
from benchmarks.paper.results import Results
from benchmarks.paper.scale import Axis, axis_over

ROWS = {"loss_std": "standard deviation of the loss", "norm_std": "of the gradient norm", "cosine": "mean cosine"}
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #333 }
.head { font-weight: 600 } .tick { font-size: 11px; fill: #666 }
path { vector-effect: non-scaling-stroke; fill: none; stroke-width: 2; stroke-linejoin: round }
.s0 { stroke: #0072b2 } .s1 { stroke: #e69f00; stroke-dasharray: 7 3 } .s2 { stroke: #cc3311; stroke-dasharray: 2 3 }
.area { stroke: none; opacity: .15 } .area.s0 { fill: #0072b2 } .area.s1 { fill: #e69f00 } .area.s2 { fill: #cc3311 }
.grid { stroke: #ddd; stroke-width: 1 }
""".strip()

LEFT, TOP, GAP, HEIGHT, WIDTH = 56, 64, 52, 150, 380
"""Of the drawing, in CSS pixels: margins, between panels, and the size of one panel."""


def figure(results: Results) -> str:
    """The SVG: library set, trained weights, dropout on; a line is the mean over seeds, its area their extremes."""
    steps = results.curves(_cell("sharded", PAPER[0].name), "cosine").shape[1]
    plot = Plot(HEIGHT, 0, steps - 1)
    width = LEFT + len(READINGS) * WIDTH + (len(READINGS) - 1) * GAP + 16
    height = TOP + len(ROWS) * (HEIGHT + GAP) - 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{html.escape(_summary(results))}</title>",
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
        *_legend(),
    ]
    for row, quantity in enumerate(ROWS):
        axis = axis_over(results.curves(_cell(*each), quantity) for each in product(READINGS, _names()))
        assert axis is not None
        for column, reading in enumerate(READINGS):
            left, top = LEFT + column * (WIDTH + GAP), TOP + row * (HEIGHT + GAP)
            parts += _panel(results, reading, quantity, plot, axis, left, top)
    return "\n".join([*parts, "</svg>", ""])


def _panel(results: Results, reading: str, quantity: str, plot: Plot, axis: Axis, left: int, top: int) -> list[str]:
    parts = [f'<text class="head" x="{left}" y="{top - 8}">{ROWS[quantity]}, {reading}</text>']
    for at, text in axis.labels():
        down = top + HEIGHT * (1 - at)
        parts.append(f'<path class="grid" d="M{left} {down:.1f}h{WIDTH}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{down + 4:.1f}" text-anchor="end">{text}</text>')
    for across, text, anchor in ((0, "step 0", "start"), (WIDTH, f"{plot.last_step}", "end")):
        place = f'x="{left + across}" y="{top + HEIGHT + 14}" text-anchor="{anchor}"'
        parts.append(f'<text class="tick" {place}>{text}</text>')
    parts.append(
        f'<svg x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" viewBox="{plot.box}" preserveAspectRatio="none">'
    )
    steps_T = np.arange(plot.last_step + 1, dtype=np.float64)
    for index, name in enumerate(_names()):
        curves_ST = results.curves(_cell(reading, name), quantity)
        area = area_path(steps_T, curves_ST.min(axis=0), curves_ST.max(axis=0), plot, axis)
        line = line_path(steps_T, curves_ST.mean(axis=0), plot, axis)
        parts.append(f'<path class="area s{index}" d="{area}"/><path class="s{index}" d="{line}"/>')
    return [*parts, "</svg>"]


def _legend() -> list[str]:
    parts: list[str] = []
    for index, setting in enumerate(PAPER):
        left = LEFT + index * 290
        parts.append(f'<path class="s{index}" d="M{left} 20h26"/>')
        parts.append(f'<text x="{left + 32}" y="24">{setting.name}: {setting.planted.removeprefix("healthy: ")}</text>')
    return parts


def _summary(results: Results) -> str:
    last = {
        reading: ", ".join(f"{results.curves(_cell(reading, name), 'cosine').mean():.3f}" for name in _names())
        for reading in READINGS
    }
    means = "; ".join(f"{reading} {values}" for reading, values in last.items())
    return f"Dispersions of s1-1, s1-2 and s1-3 over steps. Mean cosine of the three: {means}."


def _names() -> list[str]:
    return [setting.name for setting in PAPER]


def _cell(reading: str, name: str) -> Cell:
    return Cell(LIBRARY, "trained", reading, name, "on")
