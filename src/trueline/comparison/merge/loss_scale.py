"""Common scale of gradients where one run alone scales its loss for the backward pass and undoes it before the update.

The factor is read off the gradient of the first single number that both runs have one of, the loss; where only calls of
modules were recorded, off the norms of the first gradient. The gradients of parameters in the update show whether the
factor is undone; where they differ by it, nothing is changed, and the difference is judged. Clipping undoes any factor:
then the norms that both runs clipped by show it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace

from trueline.comparison.match.align import Alignment
from trueline.comparison.merge.shards import scaled, single_number
from trueline.judge.recorded.step_values import Value, key_of
from trueline.judge.series.clip_calls import calls_at
from trueline.schema.formats import FORMATS
from trueline.store.reader import Run


def with_one_loss_scale(alignment: Alignment, clipped: float | None = None) -> Alignment:
    """Divide the gradients of the run before the update by its ``loss_scale`` over that of the reference.

    Returns ``alignment`` unchanged where there is no scale, or none that is undone. ``clipped`` is the
    ``clipped_ratio``.
    """
    scale = _loss_scale(alignment, clipped)
    if scale is None or not _is_undone(alignment, scale, clipped):
        return alignment
    step, scaled_roots = alignment.mine, _scaled_roots(alignment, scale)
    values = [scaled(value, 1 / scale) if value.root in scaled_roots else value for value in step.values]
    unscaled = replace(step, values=values)
    return replace(alignment.apply_to(unscaled, alignment.theirs), loss_scale=scale)


def clipped_ratio(run: Run, ref: Run, step: int, rank: int | None) -> float | None:
    """Norm that the run clipped gradients by over that of the reference; of several calls the ratio farthest from 1.

    None where a norm of a call that both made is unknown.
    """
    calls = list(zip(calls_at(run, step, rank), calls_at(ref, step, rank), strict=False))
    ratios = [call.clipped_by / ref_call.clipped_by for call, ref_call in calls if ref_call.clipped_by]
    all_known = len(ratios) == len(calls) and all(0 < ratio < math.inf for ratio in ratios)
    return max(ratios, key=lambda ratio: abs(math.log(ratio)), default=None) if all_known else None


def _scaled_roots(alignment: Alignment, scale: float) -> set[int]:
    """Roots of values of the run that have the scale of the loss: gradients before the update.

    Values of calls that run in backward count where dividing brings them nearer to their twins.
    """
    executed = {key_of(value) for value in alignment.mine.values if value.args is not None}
    return {
        value.root
        for value, twin, _ in alignment.pairs
        if value is not None
        and value.index == value.root
        and value.site.phase == "bwd"
        and value.dtype in FORMATS
        and (key_of(value) not in executed or _is_nearer(value, twin, scale))
    }


def _is_nearer(value: Value, twin: Value | None, scale: float) -> bool:
    ratio = None if twin is None else _log_ratio(value, twin)
    return ratio is not None and abs(ratio - math.log(scale)) < abs(ratio)


def _loss_scale(alignment: Alignment, clipped: float | None) -> float | None:
    """Gradient of the loss in the run over that in the reference; None where they are equal or not comparable."""
    modules_only = all(value.kind != "op" for side in alignment.sides for value in side.values)
    for grad, ref_grad, _ in alignment.pairs:
        if grad is None or ref_grad is None or grad.site.phase != "bwd" or grad.stats is None or ref_grad.stats is None:
            continue
        if modules_only:
            ratio = _log_ratio(grad, ref_grad)
            is_hidden = clipped is None and _is_clipped(alignment)
            scale = 1.0 if ratio is None or is_hidden else _nearest_factor(math.exp(ratio))
        elif grad.stats.numel != 1 or ref_grad.stats.numel != 1:
            return None
        else:
            number, ref_number = single_number(grad.stats), single_number(ref_grad.stats)
            scale = number / ref_number if ref_number else 0.0
        return scale if math.isfinite(scale) and scale > 0 and scale != 1.0 else None
    return None


def _nearest_factor(scale: float) -> float:
    """Power of two or whole number next to a quotient of two norms; the quotient itself where there is none."""
    candidates = (2.0 ** round(math.log2(scale)), float(round(scale)))
    return next((factor for factor in candidates if abs(scale - factor) <= _NORM_ERROR * factor), scale)


_NORM_ERROR = 1e-5
"""Relative error of a quotient of two norms of gradients that differ by rounding alone."""


def _is_clipped(alignment: Alignment) -> bool:
    """Tell whether the update of either run has gradients clipped to a round norm: clipping undoes any factor."""
    for side in alignment.sides:
        grads = [value for value in side.values if value.site.phase == "grad" and value.stats is not None]
        norm = math.sqrt(sum(value.stats.sum_sq for value in grads if value.stats is not None))
        if 0 < norm < math.inf and abs(norm - float(f"{norm:.1g}")) <= _CLIPPED_ERROR * norm:
            return True
    return False


_CLIPPED_ERROR = 1e-5
"""Relative distance of the norm of clipped gradients from a number of one digit."""


def _is_undone(alignment: Alignment, scale: float, clipped: float | None) -> bool:
    """Tell whether the update undoes ``scale``.

    Then gradients of parameters are ``scale`` times those of the reference at first, and nearer to them in the update,
    or in the norms that they are clipped by. A loss that is a sum, divided later, has another gradient, but parameters
    have equal ones.
    """
    before, in_update = (list(_log_norm_ratios(alignment, phase)) for phase in ("bwd", "grad"))
    in_update = in_update if clipped is None else [math.log(clipped)]
    half = abs(math.log(scale)) / 2
    return bool(before and in_update) and abs(statistics.median(in_update)) < half < abs(statistics.median(before))


def _log_norm_ratios(alignment: Alignment, phase: str) -> Iterator[float]:
    """Logarithms of the norms of parameters' gradients over those of the reference."""
    for grad, ref_grad, _ in alignment.pairs:
        if grad is None or ref_grad is None or grad.site.phase != phase or grad.kind != "param":
            continue
        ratio = _log_ratio(grad, ref_grad)
        if ratio is not None:
            yield ratio


def _log_ratio(grad: Value, ref_grad: Value) -> float | None:
    """Logarithm of the quotient of two norms; None where one is 0 or unknown."""
    norms = [0.0 if value.stats is None else value.stats.norm for value in (grad, ref_grad)]
    return math.log(norms[0] / norms[1]) if all(0 < norm < math.inf for norm in norms) else None
