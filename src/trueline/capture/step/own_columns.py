"""Columns of a workers row from the tensors that were copied to the host. Pure: arrays in, plain values out.

Letters: P parameters, G groups, k sketch length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trueline.capture.model.layout import Layout
from trueline.capture.step.shared_columns import Measurement
from trueline.tensor.digest import unsigned

Array = NDArray[np.float64]

MISSING = -1.0
"""Marks "no gradient was measured" in a list of norms, which cannot hold None."""


def gradient_columns(host: Mapping[str, Tensor], layout: Layout) -> dict[str, Any]:
    """The columns of gradients that need no other worker: its ``local`` and ``used`` norms."""
    row: dict[str, Any] = {}
    norm2 = norms2(host, "local", layout)
    if norm2 is not None:
        is_seen = norm2 != MISSING
        total = float(norm2[is_seen].sum())
        row["grad_norm"] = math.sqrt(total) if total >= 0 else math.nan
        row["grad_nonfinite"] = float(not math.isfinite(total))
        row["param_grad_norms"] = _roots(norm2).tolist()
        row["group_grad_norms"] = np.sqrt(by_group(norm2, layout)).tolist()
        row["group_seen"] = _seen_fraction(is_seen, layout)
    elif "used_norm2" in host:
        row["group_seen"] = [0.0] * len(layout.groups)
    if "used_norm2" in host and layout.mesh.shards == 1:
        row["used_param_norms"] = _roots(host["used_norm2"].numpy()).tolist()
    for phase, column in (("local", "param_grad_norms"), ("used", "used_param_norms")):
        if f"{phase}_whole_norm2" in host:
            norms = np.array(row.get(column, [MISSING] * len(layout.names)))
            norms[list(layout.whole)] = _roots(host[f"{phase}_whole_norm2"].numpy())
            row[column] = norms.tolist()
    return row | _entered(host, layout)


def _entered(host: Mapping[str, Tensor], layout: Layout) -> dict[str, Any]:
    """``group_entered_factor`` and ``group_entered_residual``, [G] each: what this worker gave into a reduction of the
    user's own against what backward had left; None where not all of a group was seen on its way, or backward left none.
    """
    if "entered_sketch" not in host or "local_sketch" not in host:
        return {}
    shape = (len(layout.groups), layout.k)
    local, entered = (host[f"{phase}_sketch"].numpy().reshape(shape) for phase in ("local", "entered"))
    apart_P = (host["local_norm2"].numpy() == MISSING) != (host["entered_norm2"].numpy() == MISSING)
    partly = np.bincount(layout.group_index, apart_P, minlength=shape[0]) > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        square = np.sum(local**2, axis=1)
        factor = np.sum(entered * local, axis=1) / square
        residual = np.sqrt(np.sum((entered - factor[:, None] * local) ** 2, axis=1) / square)
    is_known = np.isfinite(residual) & ~partly
    return {
        f"group_entered_{name}": [
            float(value) if is_value else None for value, is_value in zip(values, is_known, strict=True)
        ]
        for name, values in (("factor", factor), ("residual", residual))
    }


def digest_columns(host: Mapping[str, Tensor], *names: str) -> dict[str, list[int]]:
    """The columns of uint64 digests of these names that arrived as int64."""
    return {name: [unsigned(value) for value in host[name].tolist()] for name in names if name in host}


def own_measurement(host: Mapping[str, Tensor], layout: Layout) -> Measurement:
    """This worker's norms and sketches as arrays; zeros for a local gradient that was not seen."""
    shape = (len(layout.groups), layout.k)

    def sketch(phase: str) -> Array | None:
        tensor = host.get(f"{phase}_sketch")
        return None if tensor is None else tensor.numpy().reshape(shape)

    local = sketch("local")
    norm2 = norms2(host, "local", layout)
    norms = np.zeros(shape[0]) if norm2 is None else np.sqrt(by_group(norm2, layout))
    return Measurement(
        local_norm=norms,
        local=np.zeros(shape) if local is None else local,
        reduced=sketch("reduced"),
        used=sketch("used"),
        times=int(host.get("reduced_times", 1)),
        cancelled=_cancelled(host, layout),
    )


def _cancelled(host: Mapping[str, Tensor], layout: Layout) -> Array:
    """[G] upper bound of the sum of the norms of all micro-batches' reduced gradients over the norm of their sum: n
    norms add up to at most √(n Σ norm²).
    """
    if "reduced_times" not in host:
        return np.ones(len(layout.groups))
    norms2_sum = by_group(host["reduced_norm2"].numpy(), layout) * float(host["reduced_times"])
    total = host["reduced_group_norm2"].numpy()
    return np.sqrt(np.maximum(np.divide(norms2_sum, total, out=np.ones_like(total), where=total > 0), 1.0))


def reduced_norm2(host: Mapping[str, Tensor], layout: Layout) -> Array | None:
    """Squared norm per group, float64 [G], of what the reduction returned (or, where that is not seen, of what was
    used).
    """
    for phase in ("reduced", "used"):
        norm2 = norms2(host, phase, layout)
        if norm2 is not None:
            return by_group(norm2, layout)
    return None


def norms2(host: Mapping[str, Tensor], phase: str, layout: Layout) -> Array | None:
    """Squared norms float64 [P] of one phase. Where micro-batches were added up, the sum lacks their cross terms: each
    group is scaled to the square of its sketch.
    """
    tensor = host.get(f"{phase}_norm2")
    if tensor is None:
        return None
    norm2 = tensor.numpy()
    if host.get(f"{phase}_times", 1) <= 1:
        return norm2
    target_norm2, summed = host[f"{phase}_group_norm2"].numpy(), by_group(norm2, layout)
    scale = np.divide(target_norm2, summed, out=np.ones_like(target_norm2), where=summed > 0)
    return np.where(norm2 == MISSING, MISSING, norm2 * scale[layout.group_index])


def by_group(norm2_P: Array, layout: Layout) -> Array:
    """Sum of squares per group, float64 [G]; parameters that were not measured add nothing."""
    measured_P = np.where(norm2_P == MISSING, 0.0, norm2_P)
    return np.bincount(layout.group_index, measured_P, minlength=len(layout.groups))


def _roots(norm2_P: Array) -> Array:
    return np.where(norm2_P == MISSING, MISSING, np.sqrt(np.maximum(norm2_P, 0.0)))


def _seen_fraction(seen_P: NDArray[np.bool_], layout: Layout) -> list[float]:
    """Share of each group's elements whose gradient was seen before reduction."""
    if seen_P.all():
        return [1.0 if spec.numel else 0.0 for spec in layout.groups]
    numels = np.where(seen_P, np.asarray(layout.numels, dtype=np.float64), 0.0)
    count = np.bincount(layout.group_index, numels, minlength=len(layout.groups))
    return [float(part / max(spec.numel, 1)) for part, spec in zip(count, layout.groups, strict=True)]
