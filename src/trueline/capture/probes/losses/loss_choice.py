"""Which number is a step's loss, from what backward was called on and what the model returned. Pure, on the host.

Letters: M backward passes or forward passes of the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LOSS_SCALE = 16.0
"""Powers of two from here on are taken for the scale of a loss in float16; smaller ones may be meant."""

PER_TOKEN = "backward, per token"
"""Source of a loss that is the mean over the rank's tokens, where a multiple of their sum was trained."""


class Doubt(Enum):
    """What a reader of the loss has to know, once a Run."""

    NOT_RETURNED = auto()
    OWN_TOKENS = auto()
    SHORT_WINDOW = auto()
    SCALED = auto()


@dataclass(frozen=True)
class Choice:
    """A loss, the tokens that it is the mean over (None: not known), the losses of the M micro-batches, where it comes
    from, whether what the model returned is that loss, too, and what a reader has to know, with the ``note`` that says
    it of this step.
    """

    loss: float
    tokens: float | None = None
    parts: list[float] = field(default_factory=list[float])
    source: str = "backward"
    is_models: bool = False
    doubt: Doubt | None = None
    note: str = ""


def choose(
    trained_M3: Array, returned_M3: Array, *, workers: int, rel: float, step: int, window: int = 0
) -> Choice | None:
    """The loss of one step; None where neither is known.

    Rows are (loss, sum over tokens, tokens), NaN where unknown: of each backward pass, whose losses add up, and of each
    forward pass of the model. Numbers that differ by less than ``rel``, relative, are equal but for rounding. What was
    trained is the loss; where it is a multiple of a sum over tokens, by a count that is not this rank's own, their mean
    is. ``window`` is the most micro-batches that a step before had: the last one of an epoch may have fewer, of which
    some frameworks divide each by ``window`` all the same.
    """
    if not len(trained_M3):
        return _returned_alone(returned_M3)
    trained = float(trained_M3[:, 0].sum())
    returned = returned_M3[:, 0]
    if 0 < len(returned) < window and math.isclose(trained * window, float(returned.sum()), rel_tol=rel):
        return Choice(float(returned.mean()), parts=returned.tolist(), is_models=True)
    agrees = _agrees(trained, returned, workers=workers, rel=rel) or _same_sums(trained_M3, returned_M3, rel=rel)
    sums_M2 = _token_sums(trained_M3, returned_M3, agrees=agrees)
    if sums_M2 is None:
        sums_M2 = _multiplied(trained_M3, returned_M3, workers=workers, rel=rel)
    # a loss per token is the only one that ranks with other numbers of tokens can be compared by
    if sums_M2 is not None and sums_M2[:, 1].sum() > 0:
        return _per_token(trained, sums_M2, rel=rel, step=step, is_models=agrees)
    parts = (trained_M3[:, 0] * len(trained_M3)).tolist()
    if agrees or not len(returned) or not np.isfinite([trained, *returned]).all():
        short = not agrees and len(trained_M3) < window
        doubt = (Doubt.SHORT_WINDOW, _short(len(parts), window, step)) if short else ()
        return Choice(trained, None, parts, "backward", agrees, *doubt)
    mean = float(returned.mean())
    if scale := _scale(trained, mean, rel):
        return Choice(mean, None, returned.tolist(), "output", True, Doubt.SCALED, _scaled(scale, step))
    return Choice(
        trained,
        parts=parts,
        doubt=Doubt.NOT_RETURNED,
        note=f"the recorded loss is what backward was called on, not the loss in the model's output: {trained:.4g} and "
        f"{mean:.4g} at step {step}, and neither micro-batches nor ranks explain that they differ.",
    )


def _returned_alone(returned_M3: Array) -> Choice | None:
    if not len(returned_M3) or np.isnan(returned_M3[:, 0]).all():
        return None
    losses, sums, counts = returned_M3.T
    if np.isfinite(sums).all() and counts.sum() > 0:
        loss, parts = float(sums.sum() / counts.sum()), _quotients(returned_M3[:, 1:])
        return Choice(loss, float(counts.sum()), parts, source="output", is_models=True)
    return Choice(float(losses.mean()), parts=losses.tolist(), source="output", is_models=True)


def _agrees(trained: float, returned: Array, *, workers: int, rel: float) -> bool:
    """True if what was trained is the model's losses: their mean, or sum (of shares), or that times the workers, as
    where the average over them is undone.
    """
    if not len(returned):
        return False
    explained = (returned.mean(), returned.sum(), workers * returned.sum())
    return any(math.isclose(trained, float(value), rel_tol=rel) for value in explained)


def _token_sums(trained_M3: Array, returned_M3: Array, *, agrees: bool) -> Array | None:
    """[M, 2] sums over tokens and their counts, behind what was trained; None where they are not known for sure."""
    if np.isfinite(trained_M3[:, 1:]).all():
        return trained_M3[:, 1:]
    if not len(returned_M3) or not np.isfinite(returned_M3[:, 1:]).all():
        return None
    return returned_M3[:, 1:] if agrees else None


def _multiplied(trained_M3: Array, returned_M3: Array, *, workers: int, rel: float) -> Array | None:
    """[M, 2] sums over tokens, times what each loss was multiplied by after the model returned it, and their counts;
    None where that is no single number, or a multiple of the mean over the rank's own tokens is nearer.

    The loss of a rank that multiplies it alone must be so many times those of the others, and in their unit.
    """
    if len(trained_M3) != len(returned_M3) or not np.isfinite(returned_M3).all():
        return None
    count, losses = float(returned_M3[:, 2].sum()), returned_M3[:, 0]
    times_M = trained_M3[:, 0] / np.where(losses == 0, math.nan, losses)
    if count <= 0 or not (times_M > 0).all() or not np.allclose(times_M, times_M[0], rtol=rel, atol=0):
        return None
    own_mean = float(returned_M3[:, 1].sum()) / count
    # divided by micro-batches, as it is, or times the workers: whichever explains most of it
    factor = min((float(times_M[0]) / unit for unit in (1 / len(losses), 1, workers)), key=_distance)
    # a scale of float16 is no weight of the tokens
    if factor >= LOSS_SCALE or _distance(float(trained_M3[:, 0].sum()) / own_mean) < _distance(factor):
        return None
    return returned_M3[:, 1:] * (factor, 1.0)


def _distance(factor: float) -> float:
    return abs(math.log(factor)) if factor > 0 else math.inf


def _same_sums(trained_M3: Array, returned_M3: Array, *, rel: float) -> bool:
    """True if each backward pass began at a multiple of the token sum that the model returned, up to the sign."""
    same_length = len(trained_M3) == len(returned_M3)
    return same_length and bool(np.allclose(abs(trained_M3[:, 1]), abs(returned_M3[:, 1]), rtol=rel, atol=0))


def _per_token(trained: float, sums_M2: Array, *, rel: float, step: int, is_models: bool) -> Choice:
    parts = _quotients(sums_M2)
    count = float(sums_M2[:, 1].sum())
    own_mean = float(np.nanmean(parts))
    if math.isclose(trained, own_mean, rel_tol=rel):
        return Choice(trained, count, parts, is_models=is_models)
    if scale := _scale(trained, own_mean, rel):
        return Choice(own_mean, count, parts, "backward", True, Doubt.SCALED, _scaled(scale, step))
    return Choice(
        float(sums_M2[:, 0].sum() / count),
        count,
        parts,
        source=PER_TOKEN,
        is_models=is_models,
        doubt=Doubt.OWN_TOKENS,
        note="the loss shown here is the mean over the tokens of this process; "
        f"{_gradient_of(trained, parts, rel=rel)}.",
    )


def _gradient_of(trained: float, parts: list[float], *, rel: float) -> str:
    """What backward is called on, of micro-batches whose means are ``parts``."""
    if len(parts) > 1 and math.isclose(trained, float(np.nansum(parts)), rel_tol=rel):
        return f"backward is called on the mean of each of {len(parts)} micro-batches, and their gradients add up"
    return (
        "backward divides their sum by another number, as Hugging Face's Trainer does by the tokens of all "
        "micro-batches and ranks"
    )


def _quotients(sums_M2: Array) -> list[float]:
    return [total / count if count > 0 else math.nan for total, count in sums_M2.tolist()]


def _scale(trained: float, loss: float, rel: float) -> float | None:
    """The power of two that ``trained`` is times ``loss``, if it is one of ``LOSS_SCALE`` at least."""
    ratio = trained / loss if loss else math.nan
    if not math.isfinite(ratio) or ratio < LOSS_SCALE * (1 - rel):
        return None
    # loss scales are powers of two, so that nothing is rounded by them
    nearest = 2.0 ** round(math.log2(ratio))
    return nearest if math.isclose(ratio, nearest, rel_tol=rel) else None


def _short(micros: int, window: int, step: int) -> str:
    return (
        "the loss of a step with fewer micro-batches than others is what backward was called on, added up: at step "
        f"{step}, with {micros}, it is too small if each was divided by {window} as before (HF Accelerate does that)."
    )


def _scaled(scale: float, step: int) -> str:
    return (
        "the recorded loss is without the scale that float16 needs, for which is taken what backward was called on it "
        f"times: {scale:.0f} at step {step}."
    )
