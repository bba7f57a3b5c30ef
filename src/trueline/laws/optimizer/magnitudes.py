"""How far optimizers whose whole rule is not predicted may move a parameter: a bound for each slice.

K elements of one slice, n of its parameter, move = after - before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from trueline.judge.series.sampled_updates import Slice, finite_numbers, sampled_updates
from trueline.judge.series.update_rules import PARAM, TOLERANCE, Array
from trueline.judge.stats.memoize import memoized
from trueline.store.reader import Run

LARGEST_SINGULAR_VALUE = 1.3
"""Bound of a matrix after five Newton-Schulz steps with Muon's default coefficients. They end in 0.68 to 1.13 (Jordan,
Muon, 2024), and are computed in bfloat16."""

_DEFAULT_COEFFICIENTS = [3.4445, -4.775, 2.0315]
"""Default of torch.optim.Muon for its Newton-Schulz steps."""


@memoized
def bounded_updates(run: Run) -> tuple[tuple[Slice, Array], ...]:
    """Every slice for which there is a bound, with the excess [K] or [1] of its move over that (more than 1: it was
    exceeded). Raises ``CannotTell`` where no update was sampled.
    """
    excesses = ((sample, _excess(sample)) for sample in sampled_updates(run).slices)
    return tuple((sample, excess) for sample, excess in excesses if excess is not None)


def _excess(sample: Slice) -> Array | None:
    bound = BOUNDS.get(sample.law)
    if bound is None or not sample.has_gradient or PARAM not in sample.after:
        return None
    if not finite_numbers(sample.settings, "lr", "weight_decay"):
        return None
    try:
        with np.errstate(all="ignore"):
            excess = bound(sample)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        return None  # settings that this class does not have
    return None if excess is None else np.where(np.isfinite(excess), excess, 0.0)


def _rounding(sample: Slice, size: float) -> Array:
    """[K] by what rounding may change a move of that size."""
    return TOLERANCE * sample.unit * (np.abs(sample.before[PARAM]) + size) + 2 * sample.tiny(PARAM)


def lion(sample: Slice) -> Array:
    """Besides weight decay each element moves by the rate or not at all (Chen et al., arXiv 2302.06675)."""
    rate = sample.settings["lr"]
    move = np.abs(sample.after[PARAM] - sample.before[PARAM] * (1 - rate * sample.settings["weight_decay"]))
    return np.minimum(move, np.abs(move - rate)) / _rounding(sample, rate)


def muon(sample: Slice) -> Array | None:
    """A row of a matrix has at most the norm of its largest singular value."""
    settings = sample.settings
    if list(settings["ns_coefficients"]) != _DEFAULT_COEFFICIENTS or settings["ns_steps"] < 5:
        return None
    rows, columns = sample.shape
    scales = {
        "original": math.sqrt(max(1.0, rows / columns)),
        "match_rms_adamw": 0.2 * math.sqrt(max(rows, columns)),
    }
    scale = scales.get(settings["adjust_lr_fn"] or "original", 1.0)
    # A slice of neighbouring elements may begin and end in the middle of a row.
    num_rows = 2 + len(sample.before[PARAM]) // columns
    return _norm_excess(sample, settings["lr"] * scale * LARGEST_SINGULAR_VALUE * math.sqrt(num_rows))


def adafactor(sample: Slice) -> Array | None:
    """The root mean square of a move is at most the rate, times that of the parameter, times the clipping threshold
    (Shazeer and Stern, arXiv 1804.04235).
    """
    settings, root = sample.settings, math.sqrt(sample.numel)
    is_relative = settings.get("scale_parameter", True)
    size = max(settings["eps"][1], sample.numbers_before["param_norm"] / root) if is_relative else 1.0
    # transformers calls the threshold clip_threshold, torch d.
    threshold = settings.get("clip_threshold", settings.get("d", 1.0))
    return _norm_excess(sample, root * settings["lr"] * size * threshold)


def lamb(sample: Slice) -> Array | None:
    """The norm of a move is the rate times that of the parameter (You et al., arXiv 1904.00962)."""
    norm = sample.numbers_before["param_norm"]
    return _norm_excess(sample, sample.settings["lr"] * norm) if norm > 0 else None


def _norm_excess(sample: Slice, bound: float) -> Array:
    """[1] the norm of the move of the slice over the bound, weight decay and rounding allowed for."""
    move, rate = sample.after[PARAM] - sample.before[PARAM], sample.settings["lr"]
    decay = rate * (sample.settings.get("weight_decay") or 0.0) * np.linalg.norm(sample.before[PARAM])
    slack = float(np.linalg.norm(_rounding(sample, bound)))
    return np.array([float(np.linalg.norm(move)) / (bound + float(decay) + slack)])


BOUNDS: Mapping[str, Callable[[Slice], Array | None]] = {
    "Lion": lion,
    "Muon": muon,
    "Adafactor": adafactor,
    "Lamb": lamb,
}
"""By the name that ``capture.probes.update_slices`` gives them."""
