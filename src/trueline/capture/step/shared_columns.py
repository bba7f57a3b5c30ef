"""The columns of a step that depend on other workers, from one worker's sketches and the sums over all.

Letters: N workers, G groups, k sketch length. All arrays are float64 on the host. Pure functions: no torch, no ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from trueline.schema.formats import FORMATS
from trueline.tensor.sketch import BLOCK_ROWS, sketch_length

Array = NDArray[np.float64]

SCALARS: tuple[str, ...] = (
    *("step", "passes", "finite", "norm2", "sketch_norm", "plain", "sampled", "step_s"),
    *("plan", "seen", "layout", "wants"),
)
"""Scalars that every rank sends in a sampled step, in this order: the step; the reduced backward passes so far,
which all workers make together; whether all that it measured is finite; the squared norm of its gradient and the norm
of its sketch; ``OwnTime.latest``; the latest revision of the Plan that it announces; the faults that it has detected
(``Triggers.take_bits``); the digest of the Layout of what it adds to the sums, 0 where it adds nothing, and of the one
that would fit its model now.
"""

_U32 = FORMATS["float32"].unit
LAMBDA = 8.0
"""Roundings behave like independent errors: a bound of LAMBDA·√n·u fails with probability 2·exp(-LAMBDA²/2) = 2.5e-14
(Higham & Mary, A New Approach to Probabilistic Rounding Error Analysis, SISC 41(5), 2019, theorem 2.4)."""

SKETCH_FLOOR = LAMBDA * _U32 * math.sqrt(BLOCK_ROWS / 2)
"""Relative rounding error of one sketch against its norm: signed sums of ``BLOCK_ROWS`` float32 terms."""


@dataclass(frozen=True)
class Measurement:
    """One worker's per-group norms [G] and sketches [G, k] of a step; None where nothing was seen. The reduced gradient
    is a sum of ``times`` parts, ``cancelled`` [G] times as long together (at most) as it is.
    """

    local_norm: Array
    local: Array
    reduced: Array | None
    used: Array | None
    times: int = 1
    cancelled: Array | float = 1.0


NOT_MEASURED = Measurement(local_norm=np.zeros(1), local=np.zeros((1, 1)), reduced=None, used=None)
"""Sent by a worker that has measured nothing."""


@dataclass(frozen=True)
class Sums:
    """The result of the collective: scalars [N, m], and the rest summed over workers."""

    scalars: Array
    local_norm: Array
    local: Array
    unit: Array
    second: Array
    used_norm: Array
    reduced_norm2: Array


def scalars(measured: Measurement, **facts: float) -> list[float]:
    """This worker's row of the scalars, in the order of ``SCALARS``, from ``measured`` and other ``facts`` by name;
    zeros for what is not known or not finite.
    """
    norm2 = float(np.sum(measured.local_norm**2))
    parts = [np.array(norm2), *(part for part in (measured.reduced, measured.used) if part is not None)]
    facts["finite"] = all(np.isfinite(part).all() for part in parts)
    facts |= {"norm2": norm2, "sketch_norm": float(np.linalg.norm(measured.local))}
    values = [float(facts.get(name, 0.0)) for name in SCALARS]
    # one NaN would make the sum of all workers NaN; that it was there is the scalar ``finite``
    return [value if math.isfinite(value) else 0.0 for value in values]


def pack(measured: Measurement, *, reduced_norm2: Array | None, sharded: bool, replicas: int) -> Array:
    """The vector that is summed over workers: [G] + [G*k] + [G*k] + [G*k] + [G] + [G]; zeros for what is not finite.

    The fourth block is what the optimizer received, or, ``sharded``, this shard of the reduced gradient, which
    ``replicas`` workers hold alike and each counts as one part of.
    """
    flat = measured.local.ravel()
    norm = float(np.linalg.norm(flat))
    unit = flat / norm if norm > 0 and math.isfinite(norm) else np.zeros_like(flat)
    second = measured.reduced if sharded else measured.used
    # replicas of a shard would count it several times
    extra = np.zeros_like(flat) if second is None else second.ravel() / replicas
    used_norm = np.zeros(len(measured.local_norm)) if measured.used is None else np.linalg.norm(measured.used, axis=1)
    shards = np.zeros(len(measured.local_norm)) if reduced_norm2 is None else reduced_norm2 / replicas
    return np.nan_to_num(
        np.concatenate([measured.local_norm, flat, unit, extra, used_norm, shards]), nan=0.0, posinf=0.0, neginf=0.0
    )


def room(max_groups: int) -> int:
    """The most that ``pack`` returns for a Layout of at most so many groups."""
    return max(_length(groups, sketch_length(groups)) for groups in range(1, max_groups + 1))


def _length(groups: int, k: int) -> int:
    return 3 * groups * (k + 1)


def unpack(scalars: Array, flat: Array, *, groups: int, k: int) -> Sums:
    """The inverse of ``pack`` on the summed vector, and whatever is behind it."""
    cuts = np.cumsum([groups, groups * k, groups * k, groups * k, groups])
    norm, local, unit, second, used_norm, reduced = np.split(flat[: _length(groups, k)], cuts)
    return Sums(
        scalars=scalars,
        local_norm=norm,
        local=local.reshape(groups, k),
        unit=unit.reshape(groups, k),
        second=second.reshape(groups, k),
        used_norm=used_norm,
        reduced_norm2=reduced,
    )


def iterations_differ(scalars: Array) -> str | None:
    """Why the workers' parts of a sum are of different iterations, as a clause; None where they are of one.

    The same number of updates after another number of reduced backward passes is an update that some workers left out
    or repeated: from there on their steps are not each other's.
    """
    for name, moment in (("step", "at the steps"), ("passes", "after the reduced backward passes")):
        values = scalars[:, SCALARS.index(name)]
        if np.any(values != values[0]):
            numbers = ", ".join(f"{value:.0f}" for value in values)
            return f"workers were {moment} {numbers}; some left out or repeated an update"
    return None


def agreed(said_N: Array) -> int | None:
    """The digest that all workers say, None where they say different ones or some say none."""
    return int(said_N[0]) if said_N[0] and np.all(said_N == said_N[0]) else None


def columns(
    measured: Measurement,
    sums: Sums,
    *,
    reduced_norm2: Array | None,
    sharded: bool,
    numel: Array,
    dtype: str,
    roundings: int,
    sees_result: bool = True,
    returned: bool = True,
    received: bool = True,
    used_dtype: str = "float32",
) -> dict[str, object]:
    """Columns that the sum over workers adds to a row. ``reduced_norm2`` [G] is of this rank's reduced gradient;
    ``sees_result`` is False where what the optimizer receives is all that is ever known of the reduction, ``returned``
    where nothing is, and ``received`` where what the optimizer receives is not; ``used_dtype`` is the coarsest in which
    a shard goes from the reduction to the optimizer.
    """
    if not returned:
        return cosines(measured, sums, reduced_norm=None)
    row = reduction(
        measured, sums, sharded=sharded, numel=numel, dtype=dtype, roundings=roundings, sees_result=sees_result
    )
    if sharded and received and "group_reduce_residual" in row:
        row |= after_reduction(measured, numel=numel, dtype=used_dtype)
    norm2 = sums.reduced_norm2 if sharded else reduced_norm2
    if norm2 is None or not np.any(norm2 > 0):
        return row | cosines(measured, sums, reduced_norm=None)
    # what the optimizer received stands for the reduced gradient, which the user may have clipped since
    if not sharded and measured.reduced is None and measured.used is not None:
        norm2 = norm2 / _common_factor(measured.used, sums) ** 2
    row |= {"reduced_norm": math.sqrt(float(np.sum(norm2))), "group_reduced_norms": np.sqrt(norm2).tolist()}
    is_mean_up_to_factor = _is_below_floor(row.get("group_reduce_shape_residual"), row.get("group_reduce_floor"))
    reduced_norm = cast(float, row["reduced_norm"]) if is_mean_up_to_factor else None
    return row | cosines(measured, sums, reduced_norm=reduced_norm)


def _common_factor(used_Gk: Array, sums: Sums) -> float:
    """The factor by which the user's code multiplied the mean gradient before the optimizer received it (clipping); 1
    where it is unclear.
    """
    mean = sums.local / sums.scalars.shape[0]
    square = float(np.vdot(mean, mean))
    factor = float(np.vdot(used_Gk, mean)) / square if square > 0 else 1.0
    return factor if factor > 0 else 1.0


def cosines(measured: Measurement, sums: Sums, *, reduced_norm: float | None) -> dict[str, object]:
    """The direction columns of one worker. The mean pairwise cosine takes the exact total N²‖ḡ‖² = Σnᵢ² + Σ gᵢ·gⱼ as a
    control variate where the reduced norm is known (docs: The maths): exact for equal norms, sketched for the rest.
    """
    workers = sums.scalars.shape[0]
    norm = float(np.linalg.norm(measured.local))
    if workers < 2 or norm == 0 or not math.isfinite(norm):
        return {}
    rest = sums.local - measured.local
    group_cosines = _cosines(measured.local, rest)
    row: dict[str, object] = {
        "cosine_others": _cosine(measured.local, rest),
        "cosine_reduced": _cosine(measured.local, sums.local),
        "cosine_pairs": float((np.vdot(measured.local / norm, sums.unit) - 1) / (workers - 1)),
        "group_cosine_others": group_cosines,
    }
    norms2 = sums.scalars[:, SCALARS.index("norm2")]
    if np.any(norms2 <= 0):
        return row
    sketched = sums.scalars[:, SCALARS.index("sketch_norm")]
    pairs = workers * (workers - 1)
    mean = (float(np.vdot(sums.unit, sums.unit)) - workers) / pairs
    if reduced_norm is not None and math.isfinite(reduced_norm):
        sketch_total = _weighted(float(np.vdot(sums.local, sums.local)), sketched)
        mean += _weighted((workers * reduced_norm) ** 2, np.sqrt(norms2)) - sketch_total
        se = _pair_se(measured, group_cosines) * math.sqrt(max(_pair_weights(sketched) - 2 / pairs, 0.0))
    else:
        se = _mean_se(measured, sums.unit, workers=workers)
    row["cosine_mean"] = mean
    row["cosine_se"] = se
    return row


def reduction(
    measured: Measurement,
    sums: Sums,
    *,
    sharded: bool,
    numel: Array,
    dtype: str,
    roundings: int,
    sees_result: bool = True,
) -> dict[str, object]:
    """The columns that compare the result of the reduction with what it should be: the mean of the local gradients,
    equal on all replicas.

    Where the result was not measured separately in this step, the gradient that the optimizer received stands for it
    if it is the mean; if it is not, only the residual without a common factor is recorded, as the user may have
    clipped it.
    """
    # zeros stand for what was not finite, so that the sum is no sum of gradients
    if np.any(sums.scalars[:, SCALARS.index("finite")] < 1):
        return {}
    workers = sums.scalars.shape[0]
    mean = sums.local / workers
    mean_norm = sums.local_norm / workers
    row: dict[str, object] = {}
    reference = None if sharded else measured.reduced
    if np.any(mean_norm > 0):
        floor = _reduce_floor(mean_norm, numel=numel, k=mean.shape[1], dtype=dtype, roundings=roundings)
        row["group_reduce_floor"] = floor.tolist()
        reduced = sums.second if sharded else measured.reduced if measured.reduced is not None else measured.used
        if reduced is not None:
            against = _against_mean(reduced, mean, mean_norm)
            straight = _is_below_floor(against["group_reduce_residual"], row["group_reduce_floor"])
            if sharded or measured.reduced is not None or not sees_result or straight:
                row |= against
                reference = reduced if reference is None and straight else reference
            else:
                factor = np.array(against["group_reduce_factor"])[:, None]
                unscaled = np.divide(reduced, factor, out=np.zeros_like(reduced), where=factor != 0)
                row["group_reduce_shape_residual"] = _relative(unscaled - mean, mean_norm)
            if not _is_below_floor(row.get("group_reduce_shape_residual"), row["group_reduce_floor"]):
                scaled = not sharded and measured.reduced is None
                if workers > 2 or not scaled:  # of two, either explains all
                    row |= _with_own_scaled(reduced, mean, measured.local / workers, mean_norm, scaled=scaled)
    if measured.used is not None and not sharded:
        row |= _used_columns(measured, sums, reference=mean if reference is None and not sees_result else reference)
    return row


def after_reduction(measured: Measurement, *, numel: Array, dtype: str) -> dict[str, object]:
    """The columns that compare what the optimizer received with this rank's shard of the mean: the factor between them,
    the residual without it, and how much of that rounding explains. The factor of a shard that is missing is 0.

    Besides the additions of ``times`` parts, an element is divided by the number of workers, cast, unscaled and
    clipped: four roundings more.
    """
    if measured.reduced is None:
        return {}
    norm = np.linalg.norm(measured.reduced, axis=1)
    used_Gk = np.zeros_like(measured.reduced) if measured.used is None else measured.used
    factor = _factors(used_Gk, measured.reduced)
    floor = (
        _reduce_floor(norm, numel=numel, k=used_Gk.shape[1], dtype=dtype, roundings=measured.times + 3)
        * measured.cancelled
    )
    return {
        "group_used_factor": [float(c) if n > 0 else None for c, n in zip(factor, norm, strict=True)],
        "group_used_shape_residual": _relative(used_Gk - factor[:, None] * measured.reduced, np.abs(factor) * norm),
        "group_used_floor": floor.tolist(),
    }


def is_mean(columns: Mapping[str, object]) -> tuple[bool, bool]:
    """True if what arrived was the mean of the workers' gradients, and whether it was so up to a factor."""
    floor = columns.get("group_reduce_floor")
    straight = _is_below_floor(columns.get("group_reduce_residual"), floor)
    return straight, straight or _is_below_floor(columns.get("group_reduce_shape_residual"), floor)


def _against_mean(reduced: Array, mean: Array, mean_norm: Array) -> dict[str, list[float | None]]:
    factor = _factors(reduced, mean)
    return {
        "group_reduce_residual": _relative(reduced - mean, mean_norm),
        "group_reduce_factor": factor.tolist(),
        "group_reduce_shape_residual": _relative(reduced - factor[:, None] * mean, mean_norm),
    }


def _with_own_scaled(
    reduced: Array, mean: Array, share: Array, mean_norm: Array, *, scaled: bool
) -> dict[str, list[float | None]]:
    """The columns of what is left of ``reduced`` if this worker's ``share`` of the mean counted another number of times
    than once; ``scaled`` where the user may have multiplied all of it, too. [G, k] each, ``mean_norm`` [G].
    """
    factors: list[float | None] = []
    residuals: list[float | None] = []
    for target, whole, part, norm in zip(reduced, mean, share, mean_norm, strict=True):
        base = np.stack([whole, part], axis=1) if scaled else part[:, None]
        # without a common factor the mean counts once, and only the share's own factor is sought
        goal = target if scaled else target - whole
        solved, _, rank, _ = np.linalg.lstsq(base, goal, rcond=1e-6)
        unit = float(solved[0]) if scaled else 1.0
        # the share is parallel to the mean: either explains the other
        if rank < base.shape[1] or unit == 0 or norm == 0:
            factors.append(None)
            residuals.append(None)
            continue
        factors.append(1 + float(solved[-1]) / unit)
        residuals.append(float(np.linalg.norm(goal - base @ solved)) / abs(unit) / float(norm))
    return {"group_reduce_own_factor": factors, "group_reduce_own_residual": residuals}


def _used_columns(measured: Measurement, sums: Sums, *, reference: Array | None) -> dict[str, object]:
    assert measured.used is not None
    workers = sums.scalars.shape[0]
    mean_norm = sums.used_norm / workers
    own_norm = np.linalg.norm(measured.used, axis=1)
    row: dict[str, object] = {
        "group_used_residual": _relative(measured.used - sums.second / workers, mean_norm),
        "group_used_floor": [2 * SKETCH_FLOOR] * len(mean_norm),
    }
    if reference is not None:
        factor = _factors(measured.used, reference)
        row["group_used_factor"] = factor.tolist()
        row["group_used_shape_residual"] = _relative(measured.used - factor[:, None] * reference, own_norm)
    local_factor = _factors(measured.used, measured.local)
    row["group_used_local"] = _relative(measured.used - local_factor[:, None] * measured.local, own_norm)
    return row


def _is_below_floor(residual: object, floor: object) -> bool:
    """True if no group's residual is above its floor: the reduced gradient is the mean of the local ones."""
    if not isinstance(residual, list) or not isinstance(floor, list):
        return False
    return all(
        r is None or r <= f for r, f in zip(cast(list[float | None], residual), cast(list[float], floor), strict=True)
    )


def _cosine(a: Array, b: Array) -> float | None:
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.vdot(a, b)) / scale if scale > 0 else None


def _cosines(a_Gk: Array, b_Gk: Array) -> list[float | None]:
    """``_cosine`` of each row."""
    dots = np.sum(a_Gk * b_Gk, axis=1)
    scales = np.linalg.norm(a_Gk, axis=1) * np.linalg.norm(b_Gk, axis=1)
    return [float(dot / scale) if scale > 0 else None for dot, scale in zip(dots, scales, strict=True)]


def _weighted(total2: float, norms_N: Array) -> float:
    """Norm-weighted mean pairwise cosine from ‖Σg‖² and the norms."""
    square = float(np.sum(norms_N**2))
    cross = float(np.sum(norms_N)) ** 2 - square
    return (total2 - square) / cross if cross > 0 else 0.0


def _pair_weights(norms_N: Array) -> float:
    """Σ over pairs of the squared weight that a pair has in the norm-weighted mean (2/(N(N-1)) for equal norms)."""
    square = float(np.sum(norms_N**2))
    cross = (float(np.sum(norms_N)) ** 2 - square) / 2
    return (square**2 - float(np.sum(norms_N**4))) / 2 / cross**2 if cross > 0 else 0.0


def _pair_se(measured: Measurement, cosines_G: list[float | None]) -> float:
    """Standard error of one sketched pair cosine, from this worker's shares of norm per group: √(Σ_g
    s_g²(1+c_g²)/k).
    """
    share = np.sum(measured.local**2, axis=1) / float(np.vdot(measured.local, measured.local))
    cosine = np.array([cosine or 0.0 for cosine in cosines_G])
    return math.sqrt(float(np.sum(share**2 * (1 + cosine**2))) / measured.local.shape[1])


def _mean_se(measured: Measurement, unit_Gk: Array, *, workers: int) -> float:
    """Standard error of the mean cosine over pairs where it comes from sketches alone; ``unit_Gk`` is the sum of the
    workers' sketches, each over its norm.

    Pairs share workers, and all share what the gradients have in common, so their errors are no independent ones: with
    a cosine of c the mean of them has (1 - c)(1 + (N - 1)c) times the error that it has at c = 0 (docs: The maths).
    Norms are taken for this worker's in their shares per group, and cosines to the others for the mean.
    """
    share_G = np.sum(measured.local**2, axis=1) / float(np.vdot(measured.local, measured.local))
    total_G, pairs = np.sum(unit_Gk**2, axis=1), workers * (workers - 1)
    to_all = float(total_G.sum()) / workers
    cross_G = (total_G - workers * share_G) / pairs
    spread_G = total_G**2 * (1 - 2 * to_all / workers) + to_all**2 * (workers * share_G**2 + pairs * cross_G**2)
    return math.sqrt(2 * max(float(spread_G.sum()), 0.0) / unit_Gk.shape[1]) / pairs


def _factors(target_Gk: Array, base_Gk: Array) -> Array:
    """Least-squares c of target = c * base per group; 0 where the base is zero."""
    square = np.sum(base_Gk**2, axis=1)
    return np.divide(np.sum(target_Gk * base_Gk, axis=1), square, out=np.zeros_like(square), where=square > 0)


def _relative(difference_Gk: Array, scale_G: Array) -> list[float | None]:
    """‖difference‖ / scale per group; None where the scale is zero and so is the difference, inf where only the scale
    is.
    """
    size = np.linalg.norm(difference_Gk, axis=1)
    return [float(d / s) if s > 0 else (None if d == 0 else math.inf) for d, s in zip(size, scale_G, strict=True)]


def _reduce_floor(mean_norm: Array, *, numel: Array, k: int, dtype: str, roundings: int) -> Array:
    """Largest |sketch(reduced) - mean of sketches| over the mean local norm that rounding explains, per group.

    Every element of the sum goes through at most ``roundings`` roundings whatever the order, so the error of the mean
    is at most γ·Σ|gᵢ|/N with γ = n·u/(1 - n·u) (Higham, Accuracy and Stability, 2nd ed., section 4.2), plus what
    underflow loses; the sketch keeps the length of that error up to 1 + λ√(2/k), and both sketches add their own
    rounding.
    """
    number_format = FORMATS.get(dtype.removeprefix("torch."))
    unit, smallest = (number_format.unit, number_format.smallest) if number_format else (_U32, 0.0)
    growth = roundings * unit / (1 - roundings * unit) if roundings * unit < 1 else math.inf
    underflow = roundings * smallest / 2 * np.sqrt(numel)
    # Per element, in units of the mean's norm: a tiny gradient loses more to underflow than to rounding.
    relative_lost = np.divide(underflow, mean_norm, out=np.zeros_like(mean_norm), where=mean_norm > 0)
    return (growth + relative_lost) * (1 + LAMBDA * math.sqrt(2 / k)) + 2 * SKETCH_FLOOR
