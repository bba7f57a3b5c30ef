"""Brings gradients to one scale where only one run scales its loss for the backward pass, and undoes it before the
update, as gradient scalers do.

The factor is read off the gradient of the first single number that both runs have one of, the loss; where only calls of
modules were recorded, off the norms of the first gradient. That it is undone shows in the gradients of parameters as
the update has them; where these differ by the factor, nothing is changed, and the difference is judged. Clipping undoes
any factor: then it shows in the norms that both runs clipped by.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace

from trueline.comparison.match.align import Alignment
from trueline.comparison.merge.shards import number_of, scaled
from trueline.judge.recorded.step_values import Value, key_of
from trueline.judge.series.clip_calls import calls_at
from trueline.schema.formats import FORMATS
from trueline.store.reader import Run


def with_one_loss_scale(alignment: Alignment, clipped: float | None = None) -> Alignment:
    """``alignment`` with the gradients of the run before the update divided by its ``loss_scale`` over that of the
    reference; unchanged where there is none that is undone. ``clipped`` as ``clipped_ratio`` gives it.
    """
    scale = _scale_of(alignment, clipped)
    if scale is None or not _is_undone(alignment, scale, clipped):
        return alignment
    mine, chosen = alignment.mine, _divided(alignment, scale)
    values = [scaled(value, 1 / scale) if value.root in chosen else value for value in mine.values]
    unscaled = replace(mine, values=values)
    return replace(alignment.apply_to(unscaled, alignment.theirs), loss_scale=scale)


def clipped_ratio(mine: Run, theirs: Run, step: int, rank: int | None) -> float | None:
    """The norm that the run clipped gradients by over that of the reference, of several calls the one farthest from 1;
    None where either is not known of the same calls.
    """
    calls = list(zip(calls_at(mine, step, rank), calls_at(theirs, step, rank), strict=False))
    ratios = [one.clipped_by / other.clipped_by for one, other in calls if other.clipped_by]
    known = len(ratios) == len(calls) and all(0 < ratio < math.inf for ratio in ratios)
    return max(ratios, key=lambda ratio: abs(math.log(ratio)), default=None) if known else None


def _divided(alignment: Alignment, scale: float) -> set[int]:
    """Roots of values of the run that have the scale of the loss: gradients before the update. Of what calls that run
    in backward make of them, those that are nearer to their twins so.
    """
    executed = {key_of(value) for value in alignment.mine.values if value.args is not None}
    return {
        mine.root
        for mine, theirs, _ in alignment.pairs
        if mine is not None
        and mine.index == mine.root
        and mine.site.phase == "bwd"
        and mine.dtype in FORMATS
        and (key_of(mine) not in executed or _is_nearer(mine, theirs, scale))
    }


def _is_nearer(mine: Value, theirs: Value | None, scale: float) -> bool:
    ratio = None if theirs is None else _log_ratio(mine, theirs)
    return ratio is not None and abs(ratio - math.log(scale)) < abs(ratio)


def _scale_of(alignment: Alignment, clipped: float | None) -> float | None:
    """The gradient of the loss in the run over that in the reference; None where they are equal or not comparable."""
    of_modules = all(value.kind != "op" for side in alignment.sides for value in side.values)
    for mine, theirs, _ in alignment.pairs:
        if mine is None or theirs is None or mine.site.phase != "bwd" or mine.stats is None or theirs.stats is None:
            continue
        if of_modules:
            ratio = _log_ratio(mine, theirs)
            hidden = clipped is None and _is_clipped(alignment)
            scale = 1.0 if ratio is None or hidden else _rounded(math.exp(ratio))
        elif mine.stats.numel != 1 or theirs.stats.numel != 1:
            return None
        else:
            one, other = number_of(mine.stats), number_of(theirs.stats)
            scale = one / other if other else 0.0
        return scale if math.isfinite(scale) and scale > 0 and scale != 1.0 else None
    return None


def _rounded(scale: float) -> float:
    """The power of two or the whole number that a quotient of two norms stands for, where there is one."""
    near = (2.0 ** round(math.log2(scale)), float(round(scale)))
    return next((each for each in near if abs(scale - each) <= _NORM_ERROR * each), scale)


_NORM_ERROR = 1e-5
"""The relative error of a quotient of two norms of gradients that rounding alone set apart."""


def _is_clipped(alignment: Alignment) -> bool:
    """Whether the update of either run has gradients of a norm that somebody chose: clipping undoes any factor."""
    for side in alignment.sides:
        grads = [value for value in side.values if value.site.phase == "grad" and value.stats is not None]
        norm = math.sqrt(sum(value.stats.sum_sq for value in grads if value.stats is not None))
        if 0 < norm < math.inf and abs(norm - float(f"{norm:.1g}")) <= _CHOSEN * norm:
            return True
    return False


_CHOSEN = 1e-5
"""The relative distance of the norm of clipped gradients from a number of one digit."""


def _is_undone(alignment: Alignment, scale: float, clipped: float | None) -> bool:
    """Whether gradients of parameters are ``scale`` times those of the reference first, and in the update, or where
    they are clipped, nearer to those themselves. (A loss that is a sum, divided later, has another gradient, and
    parameters have the same.)
    """
    before, in_update = (list(_ratios(alignment, phase)) for phase in ("bwd", "grad"))
    in_update = in_update if clipped is None else [math.log(clipped)]
    half = abs(math.log(scale)) / 2
    return bool(before and in_update) and abs(statistics.median(in_update)) < half < abs(statistics.median(before))


def _ratios(alignment: Alignment, phase: str) -> Iterator[float]:
    """Logarithms of norms of gradients of parameters over those of the reference."""
    for mine, theirs, _ in alignment.pairs:
        if mine is None or theirs is None or mine.site.phase != phase or mine.kind != "param":
            continue
        ratio = _log_ratio(mine, theirs)
        if ratio is not None:
            yield ratio


def _log_ratio(mine: Value, theirs: Value) -> float | None:
    """The logarithm of the quotient of two norms; None where one is 0 or not known."""
    norms = [0.0 if value.stats is None else value.stats.norm for value in (mine, theirs)]
    return math.log(norms[0] / norms[1]) if all(0 < norm < math.inf for norm in norms) else None
