"""Series that a healthy run could have, by the law they follow: logarithms of a loss or a norm, [runs, T]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Law = Callable[[np.random.Generator, tuple[int, int]], Floats]


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Lognormal noise about a level that does not move."""
    return 0.1 * rng.standard_normal(shape)


def decay(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """A loss that falls from 10 to 2 along a power of the step, with noise that falls with it."""
    step = np.arange(shape[1])
    return np.log(2 + 8 * (1 + step) ** -0.5 + (0.02 + 0.3 * np.exp(-step / 200)) * rng.standard_normal(shape))


def warm_up(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """A norm that rises tenfold over 200 steps and falls again."""
    step = np.arange(shape[1])
    return np.log(10) * np.minimum(step / 200, 1) - 0.0015 * step + 0.2 * rng.standard_normal(shape)


def pareto(index: float) -> Law:
    """Values with a power law of this index at the top: of index 2 and below the variance is infinite."""
    return lambda rng, shape: rng.exponential(size=shape) / index


def student(degrees: float) -> Law:
    """The loss of squared errors with Student's law: a power law of half as large an index, far out only."""
    return lambda rng, shape: np.log(0.5 + np.square(rng.standard_t(degrees, shape)))


def rare(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Every hundredth batch or so is three to ten times as hard as the others."""
    hard = np.where(rng.random(shape) < 0.01, rng.uniform(np.log(3), np.log(10), shape), 0.0)
    return hard + 0.1 * rng.standard_normal(shape)


def autoregression(memory: float) -> Law:
    """Noise that remembers this fraction of its last value."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
        out = 0.1 * rng.standard_normal(shape)
        for t in range(1, shape[1]):
            out[:, t] = memory * out[:, t - 1] + np.sqrt(1 - memory**2) * out[:, t]
        return out

    return draw


def pink(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Noise with a spectrum of 1/f."""
    frequency = np.fft.rfftfreq(shape[1])
    weight = np.where(frequency > 0, np.maximum(frequency, 1e-9) ** -0.5, 0.0)
    out = np.fft.irfft(np.fft.rfft(rng.standard_normal(shape), axis=1) * weight, n=shape[1], axis=1)
    return 0.1 * out / out.std()


def walk(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """A random walk under noise four times as large as a step of it."""
    return np.cumsum(0.025 * rng.standard_normal(shape), axis=1) + 0.1 * rng.standard_normal(shape)


def clusters(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Noise whose spread wanders, by a factor of three up and down over some fifty steps."""
    return 0.1 * np.exp(1.1 * autoregression(0.98)(rng, shape) / 0.1) * rng.standard_normal(shape)


def epochs(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """A loss that falls by a tenth within each epoch of 100 steps and is back up where the next begins."""
    return -0.1 * (np.arange(shape[1]) % 100) / 100 + 0.05 * rng.standard_normal(shape)


def coarse(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """A loss that is reported in bfloat16: 2 to 2.1 in steps of 1/64, its noise less than one of them."""
    return np.log(np.round((2.05 + 0.008 * rng.standard_normal(shape)) * 64) / 64)


def beyond(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Heavier than any power law: the logarithm itself has one, of index 2. Nothing is promised of it."""
    return 0.1 * rng.pareto(2.0, shape)


def stages(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """A curriculum: every 300 steps the data get harder at once, by three spreads. It jumps, and is told where that is
    beyond its past.
    """
    return 0.3 * (np.arange(shape[1]) // 300) + 0.1 * rng.standard_normal(shape)


PROMISED: dict[str, Law] = {
    "noise that does not change": normal,
    "falling loss, falling noise": decay,
    "warm-up of a norm": warm_up,
    "power law of index 1 (Cauchy)": pareto(1.0),
    "power law of index 3": pareto(3.0),
    "squared errors of Student's law, 2 degrees": student(2.0),
    "autoregression 0.5": autoregression(0.5),
    "autoregression 0.95": autoregression(0.95),
    "1/f noise": pink,
    "random walk under noise": walk,
    "epochs of 100 steps": epochs,
    "loss in bfloat16": coarse,
}
"""What is healthy, and should be silent."""

BEYOND: dict[str, Law] = {
    "noise whose spread wanders": clusters,
    "one batch in 100 is hard": rare,
    "tail heavier than any power law": beyond,
    "curriculum in stages": stages,
}
"""Healthy as well, but outside of what is assumed."""
