"""What follows from several settings of a job together: global batch, tokens and steps, the curve of learning rates.

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
    """Of one job; None where its settings do not say. ``rate`` gives the learning rate of an update, from 0."""

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
    """What follows from settings; ``world_size`` and the number of ``rows`` of the data set where a Run knows them."""
    number = settings.number
    ranks = world_size or _ranks(settings)
    held = math.prod(number(each) or 1.0 for each in ("tensor-parallel", "pipeline-parallel", "context-parallel"))
    replicas = ranks / held if ranks and ranks % held == 0 else None
    micro, asked, accumulated = number("micro-batch"), number("global-batch"), number("accumulation")
    product = micro * (accumulated or 1.0) * replicas if micro and replicas else None
    batch = asked or product
    length = number("sequence-length")
    per_epoch = rows / batch if rows and batch else None
    total = number("steps") or _over(number("train-samples"), batch)
    if total is None and per_epoch is not None and (epochs := number("epochs")):
        total = math.ceil(per_epoch) * epochs
    decay = number("decay-steps") or _over(number("decay-samples"), batch) or total
    warmup = _warmup(settings, batch=batch, decay=decay)
    lowest = _lowest(settings)
    return Derived(
        data_parallel=replicas,
        global_batch=batch,
        accumulation=accumulated or (batch / (micro * replicas) if batch and micro and replicas else None),
        tokens_per_step=batch * length if batch and length else None,
        steps_per_epoch=per_epoch,
        total_steps=total,
        warmup_steps=warmup,
        decay_steps=decay,
        lowest_rate=lowest,
        rate=_rate(settings, warmup=warmup, decay=decay, lowest=lowest),
    )


def _ranks(settings: Settings) -> float | None:
    given = settings.number("world-size")
    per_node, nodes = settings.number("ranks-per-node"), settings.number("nodes")
    return given or (per_node * (nodes or 1.0) if per_node else None)


def _over(samples: float | None, batch: float | None) -> float | None:
    return samples / batch if samples and batch else None


def _warmup(settings: Settings, *, batch: float | None, decay: float | None) -> float | None:
    """Steps of warm-up. A fraction, where it is given, is one of the steps over which the rate decays: of all steps in
    TrainingArguments (``warmup_ratio``), of ``--lr-decay-iters`` in Megatron (``--lr-warmup-fraction``).
    """
    fraction = settings.terms.get("warmup-fraction")
    if fraction is not None and isinstance(fraction.value, int | float) and fraction.value > 0:
        return float(fraction.value) * decay if decay else None
    samples = _over(settings.number("warmup-samples"), batch)
    if samples is not None:
        return samples
    steps = settings.get("warmup-steps")
    if steps is None or not isinstance(steps.value, int | float):
        return None
    if steps.framework in ("hf", "llamafactory") and 0 < steps.value < 1:  # a fraction since transformers 5
        return float(steps.value) * decay if decay else None
    return float(steps.value)


def _lowest(settings: Settings) -> float | None:
    fraction, peak = settings.get("min-learning-rate-fraction"), settings.number("learning-rate")
    if fraction is not None and isinstance(fraction.value, int | float) and peak:
        return float(fraction.value) * peak
    given = settings.get("min-learning-rate")
    return float(given.value) if given is not None and isinstance(given.value, int | float) else None


def _rate(
    settings: Settings, *, warmup: float | None, decay: float | None, lowest: float | None
) -> Callable[[float], float] | None:
    """The learning rate by step, of the shapes whose formula all frameworks share."""
    peak, shape = settings.number("learning-rate"), settings.get("schedule")
    kind = None if shape is None else canonical(shape)
    if peak is None or warmup is None or kind not in ("cosine", "linear", "constant"):
        return None
    if "decay-fraction" in settings.terms:  # stable until a part of training is left, by other formulas
        return None
    if kind != "constant" and (decay is None or decay <= warmup):
        return None
    least = lowest or 0.0

    def rate(step: float) -> float:
        if step < warmup:
            return peak * step / warmup
        if kind == "constant":
            return peak
        done = min((step - warmup) / ((decay or 1.0) - warmup), 1.0)
        left = 0.5 * (1 + math.cos(math.pi * done)) if kind == "cosine" else 1 - done
        return least + (peak - least) * left

    return rate


def rates_part(one: Derived, other: Derived) -> tuple[int, float, float] | None:
    """The first of some steps at which the learning rates differ, and both; None where they do not, or are unknown."""
    last = max((each.decay_steps or 0.0 for each in (one, other)), default=0.0)
    if one.rate is None or other.rate is None or not last:
        return None
    for point in range(_CURVE_POINTS + 1):
        step = round(last * point / _CURVE_POINTS)
        rates = one.rate(step), other.rate(step)
        if not math.isclose(*rates, rel_tol=_RATE_RTOL, abs_tol=1e-12):
            return step, *rates
    return None
