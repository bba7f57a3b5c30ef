"""The vertical axis of a chart: which values it spans, linear or logarithmic, and its ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueline.render.wording import number

_LOG_SPREAD = 100.0
"""Ratio of the largest value to the median above which a linear axis would flatten everything else to a line."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to heights; ``ticks`` are values inside ``low``..``high`` (both in the unit of the chart)."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]

    def fraction(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Height of each value, 0 at ``low`` and 1 at ``high``, clipped to these; NaN stays NaN."""
        if self.log:
            scaled = np.log(np.clip(values, self.low, None) / self.low) / math.log(self.high / self.low)
        else:
            scaled = (values - self.low) / (self.high - self.low)
        return np.clip(scaled, 0.0, 1.0)

    def labels(self) -> list[tuple[float, str]]:
        """(height 0..1, text) of each tick; equal steps get equal decimals."""
        heights = self.fraction(np.array(self.ticks, dtype=np.float64))
        return list(zip((float(height) for height in heights), _tick_texts(self.ticks, self.log), strict=True))


def axis_over(arrays: Iterable[NDArray[np.float64]], *, num_ticks: int = 4) -> Axis | None:
    """The axis that shows every finite value of ``arrays``; ``None`` where nothing is finite."""
    values = _finite(arrays)
    if values.size == 0:
        return None
    low, high = float(values.min()), float(values.max())
    if low > 0 and high / float(np.median(values)) > _LOG_SPREAD:
        return _log_axis(low, high)
    return _linear_axis(low, high, num_ticks)


def nice_step(span: float, num_ticks: int) -> float:
    """The 1, 2 or 5 times a power of ten that cuts ``span`` into about ``num_ticks`` pieces."""
    rough = span / max(num_ticks, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= rough), 10 * power)


def _finite(arrays: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    flat = [np.asarray(array, dtype=np.float64).ravel() for array in arrays]
    values = np.concatenate(flat) if flat else np.empty(0)
    return values[np.isfinite(values)]


def _linear_axis(low: float, high: float, num_ticks: int) -> Axis:
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = abs(high) * 0.1 or 1.0
        low, high = low - room, high + room
    room = (high - low) * 0.06
    floor = 0.0 if 0 <= low < 0.25 * high else low - room
    top = high + room
    step = nice_step(top - floor, num_ticks)
    ticks = [index * step for index in range(math.ceil(floor / step - 1e-9), math.floor(top / step + 1e-9) + 1)]
    return Axis(floor, top, False, tuple(ticks))


def _log_axis(low: float, high: float) -> Axis:
    bottom, top = low / (high / low) ** 0.04, high * (high / low) ** 0.04
    powers = range(math.ceil(math.log10(bottom)), math.floor(math.log10(top)) + 1)
    every = max(1, math.ceil(len(powers) / 4))
    ticks = [10.0**power for power in powers if power % every == 0] or [low, high]
    return Axis(bottom, top, True, tuple(ticks))


def _tick_texts(ticks: Sequence[float], log: bool) -> list[str]:
    if log or len(ticks) < 2:
        return [number(tick, 3) for tick in ticks]
    step = ticks[1] - ticks[0]
    largest = max(abs(tick) for tick in ticks)
    if largest >= 1e5 or step < 1e-4:
        return [number(0.0 if abs(tick) < step / 2 else tick, 3) for tick in ticks]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{abs(tick) if abs(tick) < step / 2 else tick:,.{decimals}f}".replace("-", "−") for tick in ticks]
