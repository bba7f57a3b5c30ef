"""Series of workers without any training: losses of parts, their means, gradient norms and cosines, to plant faults
in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trueline.laws.unlike_workers.series import WorkerSeries

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""(generator, step) to part losses [N, m] in spreads."""


def independent(num_workers: int, num_parts: int, *, shift: Sequence[float] | None = None, tails: bool = False) -> Draw:
    """Different samples on every worker, drawn alike but for a lasting ``shift`` of each worker."""
    offset = np.zeros((num_workers, 1)) if shift is None else np.array(shift, dtype=float)[:, None]

    def draw(rng: np.random.Generator, step: int) -> np.ndarray:
        shape = (num_workers, num_parts)
        return (rng.standard_t(3, shape) if tails else rng.standard_normal(shape)) + offset

    return draw


def same_batches(num_workers: int, num_parts: int, *, noise: float = 0.3, shuffled: bool = False) -> Draw:
    """The same samples on every worker, in the same order or ``shuffled``, with dropout ``noise``."""

    def draw(rng: np.random.Generator, step: int) -> np.ndarray:
        x = rng.standard_normal(num_parts) + noise * rng.standard_normal((num_workers, num_parts))
        return rng.permuted(x, axis=1) if shuffled else x

    return draw


def alike_batches(num_workers: int, num_parts: int) -> Draw:
    """Samples that are alike within each batch, for no worker in particular."""

    def draw(rng: np.random.Generator, step: int) -> np.ndarray:
        return rng.standard_normal((num_workers, 1)) + rng.standard_normal((num_workers, num_parts))

    return draw


def series_from(
    draw: Draw,
    num_steps: int,
    *,
    seed: int = 3,
    with_parts: bool = True,
    declared: tuple[tuple[int, ...], ...] = (),
    first_step: int = 0,
    norms: Draw | None = None,
) -> WorkerSeries:
    """A falling loss whose parts ``draw`` sets apart; log norms and cosines are independent noise, or what ``norms``
    says.
    """
    rng = np.random.default_rng(seed)
    sample_losses = [3 - step / num_steps + 0.4 * draw(rng, step) for step in range(num_steps)]
    num_workers = len(sample_losses[0])
    log_norm = rng.normal(0, 0.3, (num_steps, num_workers))
    if norms is not None:
        log_norm = np.array([0.3 * norms(rng, step).mean(axis=1) for step in range(num_steps)])
    return WorkerSeries(
        steps=np.arange(first_step, first_step + num_steps, dtype=np.int64),
        ranks=tuple(range(num_workers)),
        loss=np.array([each.mean(axis=1) for each in sample_losses]),
        log_norm=log_norm,
        cosine=rng.normal(0, 0.05, (num_steps, num_workers)),
        sample_losses={t: tuple(each) for t, each in enumerate(sample_losses)} if with_parts else {},
        declared=declared,
    )
