"""Delay against the size of a shift as one SVG, both axes logarithmic, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 110, 20, 50
COLOURS = ("#1b6ca8", "#2a9d8f", "#8ab17d", "#c9a227", "#f4a261", "#e76f51", "#9b2226")


def svg(rows: Sequence[dict[str, Any]]) -> str:
    """One line a number of workers, and the information limit of eight dashed."""
    sizes = sorted({row["workers"] for row in rows})
    shifts = sorted({row["shift"] for row in rows})
    highest = max(row["median"] or 1.0 for row in rows)
    top = 10 ** math.ceil(math.log10(highest))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12" role="img" aria-label="Delay against shift">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    parts += [_tick_y(10.0**power, top) for power in range(round(math.log10(top)) + 1)]
    parts += [_tick_x(shift, shifts) for shift in shifts]
    for colour, workers in zip(COLOURS, sizes, strict=False):
        mine = [row for row in rows if row["workers"] == workers and row["median"] is not None]
        points = [(_x(row["shift"], shifts), _y(row["median"], top)) for row in mine]
        parts.append(_line(points, colour))
        parts.append(
            f'<text x="{points[-1][0] + 8:.0f}" y="{points[-1][1] + 4:.0f}" fill="{colour}">N = {workers}</text>'
        )
    limit = [(_x(row["shift"], shifts), _y(max(row["limit"], 1.0), top)) for row in rows if row["workers"] == 8]
    parts.append(_line(limit, "#555555", dash="5 4"))
    parts.append(
        f'<text x="{LEFT + 8}" y="{HEIGHT - BOTTOM - 8}" fill="#555555">dashed: information limit, N = 8</text>'
    )
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">shift, spreads</text>'
    )
    parts.append(
        f'<text x="14" y="{HEIGHT / 2:.0f}" text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2:.0f})">'
        "median delay, steps</text>"
    )
    return "\n".join([*parts, "</svg>", ""])


def _x(shift: float, shifts: Sequence[float]) -> float:
    span = math.log(shifts[-1] / shifts[0])
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(shift / shifts[0]) / span


def _y(delay: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log10(delay) / math.log10(top)


def _tick_y(value: float, top: float) -> str:
    y = _y(value, top)
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
    )


def _tick_x(shift: float, shifts: Sequence[float]) -> str:
    return f'<text x="{_x(shift, shifts):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{shift:g}</text>'


def _line(points: Sequence[tuple[float, float]], colour: str, dash: str = "none") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
