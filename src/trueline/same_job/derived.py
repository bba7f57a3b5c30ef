"""Quantities that follow from several settings of a job: global batch, tokens, steps, the curve of learning rates.

Frameworks state them by other settings (a fraction, steps, samples), so jobs of different ones compare in these only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from trueline.same_job.settings import Settings, canonical

_CURVE_POINTS = 64
_RATE_RTOL = 1e-3


@dataclass(frozen=True, slots=True)
class Derived:
    """Derived quantities of one job, None where unknown; ``rate`` maps an update, from 0, to its learning rate."""

    data_parallel: float | None
    global_batch: float | None
    accumulation: float | None
    tokens_per_step: float | None
    steps_per_epoch: float | None
    total_steps: float | None
    warmup_steps: float | None
    decay_steps: float | None
    lowest_rate: float | None
    rate: Callable[[float], float] | None


def derive(settings: Settings, *, world_size: int | None = None, rows: int | None = None) -> Derived:
    """Derive quantities from settings; a Run may know ``world_size`` and the data set's number of ``rows``."""
    number = settings.number
    ranks = world_size or _num_ranks(settings)
    model_ranks = math.prod(
        number(slug) or 1.0 for slug in ("tensor-parallel", "pipeline-parallel", "context-parallel")
    )
    replicas = ranks / model_ranks if ranks and ranks % model_ranks == 0 else None
    micro, stated_batch, accumulation = number("micro-batch"), number("global-batch"), number("accumulation")
    product = micro * (accumulation or 1.0) * replicas if micro and replicas else None
    global_batch = stated_batch or product
    length = number("sequence-length")
    per_epoch = rows / global_batch if rows and global_batch else None
    total_steps = number("steps") or _steps_of_samples(number("train-samples"), global_batch)
    if total_steps is None and per_epoch is not None and (epochs := number("epochs")):
        total_steps = math.ceil(per_epoch) * epochs
    decay_steps = number("decay-steps") or _steps_of_samples(number("decay-samples"), global_batch) or total_steps
    warmup_steps = _warmup_steps(settings, batch=global_batch, decay=decay_steps)
    lowest_rate = _lowest_rate(settings)
    return Derived(
        data_parallel=replicas,
        global_batch=global_batch,
        accumulation=accumulation
        or (global_batch / (micro * replicas) if global_batch and micro and replicas else None),
        tokens_per_step=global_batch * length if global_batch and length else None,
        steps_per_epoch=per_epoch,
        total_steps=total_steps,
        warmup_steps=warmup_steps,
        decay_steps=decay_steps,
        lowest_rate=lowest_rate,
        rate=_rate_schedule(settings, warmup=warmup_steps, decay=decay_steps, lowest=lowest_rate),
    )


def _num_ranks(settings: Settings) -> float | None:
    world_size = settings.number("world-size")
    per_node, nodes = settings.number("ranks-per-node"), settings.number("nodes")
    return world_size or (per_node * (nodes or 1.0) if per_node else None)


def _steps_of_samples(samples: float | None, batch: float | None) -> float | None:
    return samples / batch if samples and batch else None


def _warmup_steps(settings: Settings, *, batch: float | None, decay: float | None) -> float | None:
    """Steps of warm-up.

    A fraction is one of the steps over which the rate decays: of all steps in TrainingArguments (``warmup_ratio``), of
    ``--lr-decay-iters`` in Megatron (``--lr-warmup-fraction``).
    """
    fraction = settings.terms.get("warmup-fraction")
    if fraction is not None and isinstance(fraction.value, int | float) and fraction.value > 0:
        return float(fraction.value) * decay if decay else None
    samples = _steps_of_samples(settings.number("warmup-samples"), batch)
    if samples is not None:
        return samples
    steps = settings.get("warmup-steps")
    if steps is None or not isinstance(steps.value, int | float):
        return None
    if steps.framework in ("hf", "llamafactory") and 0 < steps.value < 1:  # a fraction since transformers 5
        return float(steps.value) * decay if decay else None
    return float(steps.value)


def _lowest_rate(settings: Settings) -> float | None:
    fraction, peak = settings.get("min-learning-rate-fraction"), settings.number("learning-rate")
    if fraction is not None and isinstance(fraction.value, int | float) and peak:
        return float(fraction.value) * peak
    rate = settings.get("min-learning-rate")
    return float(rate.value) if rate is not None and isinstance(rate.value, int | float) else None


def _rate_schedule(
    settings: Settings, *, warmup: float | None, decay: float | None, lowest: float | None
) -> Callable[[float], float] | None:
    """Learning rate as a function of the step, for schedules whose formula all frameworks share; else None."""
    peak, shape = settings.number("learning-rate"), settings.get("schedule")
    kind = None if shape is None else canonical(shape)
    if peak is None or warmup is None or kind not in ("cosine", "linear", "constant"):
        return None
    if "decay-fraction" in settings.terms:  # stable until a part of training is left, by other formulas
        return None
    if kind != "constant" and (decay is None or decay <= warmup):
        return None
    floor = lowest or 0.0

    def rate(step: float) -> float:
        if step < warmup:
            return peak * step / warmup
        if kind == "constant":
            return peak
        decayed = min((step - warmup) / ((decay or 1.0) - warmup), 1.0)
        share = 0.5 * (1 + math.cos(math.pi * decayed)) if kind == "cosine" else 1 - decayed
        return floor + (peak - floor) * share

    return rate


def first_differing_rates(run: Derived, ref: Derived) -> tuple[int, float, float] | None:
    """First step at which the learning rates differ, with both rates; None for equal or unknown curves."""
    last = max((side.decay_steps or 0.0 for side in (run, ref)), default=0.0)
    if run.rate is None or ref.rate is None or not last:
        return None
    for point in range(_CURVE_POINTS + 1):
        step = round(last * point / _CURVE_POINTS)
        rates = run.rate(step), ref.rate(step)
        if not math.isclose(*rates, rel_tol=_RATE_RTOL, abs_tol=1e-12):
            return step, *rates
    return None
