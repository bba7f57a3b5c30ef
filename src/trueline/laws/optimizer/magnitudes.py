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
"""Of what five Newton-Schulz steps with Muon's default coefficients make of a matrix: they end in 0.68 to 1.13 (Jordan,
Muon, 2024); computed in bfloat16."""

_DEFAULT = [3.4445, -4.775, 2.0315]


@memoized
def bounded_updates(run: Run) -> tuple[tuple[Slice, Array], ...]:
    """Every slice for which there is a bound, with the excess [K] or [1] of its move over that (more than 1: it was
    exceeded). Raises ``CannotTell`` where no update was sampled.
    """
    found = ((each, _excess(each)) for each in sampled_updates(run).slices)
    return tuple((each, excess) for each, excess in found if excess is not None)


def _excess(of: Slice) -> Array | None:
    bound = BOUNDS.get(of.law)
    if bound is None or not of.has_gradient or PARAM not in of.after:
        return None
    if not finite_numbers(of.settings, "lr", "weight_decay"):
        return None
    try:
        with np.errstate(all="ignore"):
            excess = bound(of)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        return None  # settings that this class does not have
    return None if excess is None else np.where(np.isfinite(excess), excess, 0.0)


def _allowed(of: Slice, size: float) -> Array:
    """[K] what rounding may add to a move of that size."""
    return TOLERANCE * of.unit * (np.abs(of.before[PARAM]) + size) + 2 * of.tiny(PARAM)


def lion(of: Slice) -> Array:
    """Besides weight decay each element moves by the rate or not at all (Chen et al., arXiv 2302.06675)."""
    rate = of.settings["lr"]
    move = np.abs(of.after[PARAM] - of.before[PARAM] * (1 - rate * of.settings["weight_decay"]))
    return np.minimum(move, np.abs(move - rate)) / _allowed(of, rate)


def muon(of: Slice) -> Array | None:
    """A row of a matrix has at most the norm of its largest singular value."""
    settings = of.settings
    if list(settings["ns_coefficients"]) != _DEFAULT or settings["ns_steps"] < 5:
        return None
    rows, columns = of.shape
    scales = {
        "original": math.sqrt(max(1.0, rows / columns)),
        "match_rms_adamw": 0.2 * math.sqrt(max(rows, columns)),
    }
    scale = scales.get(settings["adjust_lr_fn"] or "original", 1.0)
    num_rows = 2 + len(of.before[PARAM]) // columns  # that a slice may touch
    return _norm_within(of, settings["lr"] * scale * LARGEST_SINGULAR_VALUE * math.sqrt(num_rows))


def adafactor(of: Slice) -> Array | None:
    """The root mean square of a move is at most the rate, times that of the parameter, times the clipping threshold
    (Shazeer and Stern, arXiv 1804.04235).
    """
    settings, root = of.settings, math.sqrt(of.numel)
    scaled = settings.get("scale_parameter", True)
    size = max(settings["eps"][1], of.numbers_before["param_norm"] / root) if scaled else 1.0
    return _norm_within(of, root * settings["lr"] * size * settings.get("clip_threshold", settings.get("d", 1.0)))


def lamb(of: Slice) -> Array | None:
    """The norm of a move is the rate times that of the parameter (You et al., arXiv 1904.00962)."""
    norm = of.numbers_before["param_norm"]
    return _norm_within(of, of.settings["lr"] * norm) if norm > 0 else None


def _norm_within(of: Slice, bound: float) -> Array:
    """[1] the norm of the move of the slice over the bound, weight decay and rounding allowed for."""
    move = of.after[PARAM] - of.before[PARAM]
    decay = of.settings["lr"] * (of.settings.get("weight_decay") or 0.0) * np.linalg.norm(of.before[PARAM])
    slack = float(np.linalg.norm(_allowed(of, bound)))
    return np.array([float(np.linalg.norm(move)) / (bound + float(decay) + slack)])


BOUNDS: Mapping[str, Callable[[Slice], Array | None]] = {
    "Lion": lion,
    "Muon": muon,
    "Adafactor": adafactor,
    "Lamb": lamb,
}
"""By the name that ``capture.probes.update_slices`` gives them."""
