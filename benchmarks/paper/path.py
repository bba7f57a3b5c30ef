"""SVG path data for a plot, in whole units of a tenth so that a path stays short.

Letters: B bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from benchmarks.paper.scale import Axis
from numpy.typing import NDArray

WIDTH = 1000
"""Plot units across; the browser stretches them to the width there is."""
_TENTHS = 10

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Plot:
    """The box that is drawn in: ``height`` in CSS pixels, and the steps at its left and right edge."""

    height: int
    first_step: int
    last_step: int

    def percent(self, steps: Floats) -> Floats:
        """Position across of each step, 0 to 100; a Run of one step sits in the middle."""
        if self.last_step == self.first_step:
            return np.full(np.shape(steps), 50.0)
        return 100.0 * (np.asarray(steps, dtype=np.float64) - self.first_step) / (self.last_step - self.first_step)

    @property
    def box(self) -> str:
        """The ``viewBox`` that the paths below are drawn in."""
        return f"0 0 {WIDTH * _TENTHS} {self.height * _TENTHS}"


def line_path(steps_B: Floats, values_B: Floats, plot: Plot, axis: Axis) -> str:
    """A line through the values, broken where there is none; lone values between two gaps are left out."""
    places = zip(_across(steps_B, plot), _down(values_B, plot, axis), strict=True)
    pieces: list[str] = []
    x, y, drawing = 0, 0, False
    for (across, down), drawn in zip(places, (np.isfinite(values_B) & ~_lone(values_B)).tolist(), strict=True):
        if drawn:
            pieces.append(_move(across - x, down - y) if drawing else f"M{across} {down}")
            x, y = across, down
        drawing = drawn
    return "".join(pieces)


def area_path(steps_B: Floats, low_B: Floats, high_B: Floats, plot: Plot, axis: Axis) -> str:
    """The area between two lines, in one closed piece for each stretch of bins in which both are finite."""
    x_B = np.array(_across(steps_B, plot))
    low_y_B, high_y_B = np.array(_down(low_B, plot, axis)), np.array(_down(high_B, plot, axis))
    known_B = np.isfinite(low_B) & np.isfinite(high_B)
    cuts = np.flatnonzero(np.diff(np.concatenate([[False], known_B, [False]]).astype(np.int8)))
    pieces: list[str] = []
    for start, end in zip(cuts[::2], cuts[1::2], strict=True):
        top = list(zip(x_B[start:end].tolist(), high_y_B[start:end].tolist(), strict=True))
        bottom = list(zip(x_B[start:end].tolist(), low_y_B[start:end].tolist(), strict=True))[::-1]
        outline = [*top, *bottom]
        pieces.append(f"M{outline[0][0]} {outline[0][1]}")
        pieces += [_move(here[0] - before[0], here[1] - before[1]) for before, here in pairwise(outline)]
        pieces.append("z")
    return "".join(pieces)


def _lone(values_B: Floats) -> NDArray[np.bool_]:
    """Finite values whose neighbours are not."""
    known_B = np.pad(np.isfinite(values_B), 1)
    return known_B[1:-1] & ~known_B[:-2] & ~known_B[2:]


def _move(right: int, down: int) -> str:
    return f"l{right}{'' if down < 0 else ' '}{down}"


def _across(steps_B: Floats, plot: Plot) -> list[int]:
    return np.rint(plot.percent(steps_B) * WIDTH * _TENTHS / 100).astype(np.int64).tolist()


def _down(values_B: Floats, plot: Plot, axis: Axis) -> list[int]:
    heights_B = np.nan_to_num(1.0 - axis.fraction(values_B), nan=0.0)
    return np.rint(heights_B * plot.height * _TENTHS).astype(np.int64).tolist()
