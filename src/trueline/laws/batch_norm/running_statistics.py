"""Sampled passes of batch normalisation as a Run has them, against the rule of its running statistics.

C channels of one module.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from trueline.judge.series.update_rules import TOLERANCE, Array
from trueline.schema.formats import FORMATS
from trueline.store.reader import Run

SUMS = {"mean": 1, "variance": 3}
"""Sums that each is made of: the variance of that of squares, and of the mean squared."""

PassKey = tuple[int, int, str, int]
"""Step, rank, name and number of a pass."""


@dataclass(frozen=True)
class NormPass:
    """One pass of the module ``name`` on ``rank`` at ``step``, its ``number``-th there.

    ``size`` values of each channel went in, with ``sums`` and ``squares`` [C]. ``before`` and ``after`` are the count
    of batches, running means [C] and variances [C]. ``ranks`` are those over which SyncBatchNorm normalises, None where
    it is this one alone. ``tracks`` is whether it is to change them, ``momentum`` None for the mean of all batches.
    ``unit`` is the unit roundoff of the running statistics, ``sum_unit`` that of the sums they are made of.
    ``in_backward``: made within a backward pass. ``frozen``: none of its parameters asks for a gradient.
    """

    step: int
    rank: int
    name: str
    number: int
    size: float
    sums: Array
    squares: Array
    before: tuple[float, Array, Array]
    after: tuple[float, Array, Array]
    ranks: tuple[int, ...] | None
    training: bool
    tracks: bool
    momentum: float | None
    unit: float
    sum_unit: float
    in_backward: bool
    frozen: bool

    @property
    def key(self) -> PassKey:
        """Step, rank, name and number."""
        return self.step, self.rank, self.name, self.number


@dataclass(frozen=True)
class BatchCount:
    """Batches that a module on ``rank`` had counted before its ``first`` pass of ``step`` and at the end of the step.

    ``passes`` in between were to be counted, ``in_backward`` of them within a backward pass.
    """

    step: int
    rank: int
    name: str
    first: float
    last: float
    passes: int
    in_backward: int


def sampled_passes(run: Run) -> tuple[list[NormPass], list[BatchCount]]:
    """Passes and counts of all ranks, by step, then rank, in the order in which they were made."""
    values = run.lists("norm_values")
    passes: list[NormPass] = []
    counts: list[BatchCount] = []
    for key, text in run.texts("norm_facts").items():
        if key not in values:
            continue
        facts = json.loads(text)
        modules = cast(Sequence[Mapping[str, Any]], facts["modules"])
        step_passes = list(_passes(key, modules, facts["passes"], values[key]))
        passes += step_passes
        for module, last in zip(modules, values[key], strict=False):
            name = module["name"]
            first = next((norm_pass.before[0] for norm_pass in step_passes if norm_pass.name == name), math.nan)
            counts.append(BatchCount(*key, name, first, float(last), module["counted"], module["again"]))
    return passes, counts


def _passes(
    key: tuple[int, int], modules: Sequence[Mapping[str, Any]], passes: Sequence[Mapping[str, Any]], values: Array
) -> Iterator[NormPass]:
    numbers: defaultdict[str, int] = defaultdict(int)
    start = len(modules)  # the counts of modules at the end of the step come first
    for facts in passes:
        module = modules[int(facts["of"])]
        num = int(facts["num"])
        count, mean, variance, sums, squares, new_count, new_mean, new_variance = np.split(
            values[start : start + 6 * num + 2], np.cumsum([1, num, num, num, num, 1, num])
        )
        start += 6 * num + 2
        if facts["dtype"] not in FORMATS or facts["read"] not in FORMATS:
            continue
        name = str(module["name"])
        yield NormPass(
            *key,
            name=name,
            number=numbers[name],
            size=float(facts["size"]),
            sums=sums,
            squares=squares,
            before=(float(count[0]), mean, variance),
            after=(float(new_count[0]), new_mean, new_variance),
            ranks=None if module["ranks"] is None else tuple(module["ranks"]),
            training=facts["training"],
            tracks=facts["tracks"],
            momentum=facts["momentum"],
            unit=FORMATS[facts["dtype"]].unit,
            # Kernels add up in float32 at least, in float64 what they read as that.
            sum_unit=min(FORMATS[facts["read"]].unit, FORMATS["float32"].unit),
            in_backward=facts["again"],
            frozen=module["frozen"],
        )
        numbers[name] += 1


def whole_batch(norm_pass: NormPass, passes: Mapping[PassKey, NormPass]) -> NormPass | None:
    """The pass with what all ``ranks`` of SyncBatchNorm read, from all ``passes``; None where some is missing."""
    if norm_pass.ranks is None or not norm_pass.training:
        return norm_pass
    keys = [(norm_pass.step, rank, norm_pass.name, norm_pass.number) for rank in norm_pass.ranks]
    parts = [passes[key] for key in keys if key in passes]
    if len(parts) < len(keys) or any(part.in_backward != norm_pass.in_backward for part in parts):
        return None
    return replace(
        norm_pass,
        size=sum(part.size for part in parts),
        sums=np.sum([part.sums for part in parts], axis=0),
        squares=np.sum([part.squares for part in parts], axis=0),
    )


def excess(norm_pass: NormPass) -> dict[str, Array] | None:
    """Errors of ``mean``, ``variance`` [C] and ``count`` [1], over what rounding may explain (more than 1: it cannot);
    None where nothing is known.

    With running' = (1 - m) running + m batch, and the unbiased variance of the batch (torch.nn.BatchNorm2d). The terms
    are rounded to the format of the running statistics, by ``TOLERANCE`` units at most. A sum of n values is off by up
    to n u times the sum of their magnitudes in any order (Higham 2002, Accuracy and Stability of Numerical Algorithms,
    section 4.2): kernels that add up one by one reach a third of that for values that are all the same. ``SUMS`` is how
    many such sums there are, that of squares where the kernel computes the variance as a difference. Our own are in
    float64.
    """
    (count, mean, variance), (new_count, new_mean, new_variance) = norm_pass.before, norm_pass.after
    if not norm_pass.tracks:
        return {
            "mean": _difference(mean, new_mean),
            "variance": _difference(variance, new_variance),
            "count": _difference(np.array([count]), np.array([new_count])),
        }
    share = 1 / (count + 1) if norm_pass.momentum is None else norm_pass.momentum
    size = norm_pass.size
    if size < 2 or not math.isfinite(share):
        return None
    batch_mean = norm_pass.sums / size
    largest = norm_pass.squares / (size - 1)
    batch_variance = largest - norm_pass.sums * batch_mean / (size - 1)
    sum_error = size * (norm_pass.sum_unit + FORMATS["float64"].unit)
    excesses: dict[str, Array] = {"count": _difference(np.array([count + 1]), np.array([new_count]))}
    for name, old, batch, term, new in (
        ("mean", mean, batch_mean, np.sqrt(largest), new_mean),
        ("variance", variance, batch_variance, largest, new_variance),
    ):
        predicted = (1 - share) * old + share * batch
        rounding = TOLERANCE * norm_pass.unit * ((1 - share) * np.abs(old) + share * term)
        allowed = rounding + SUMS[name] * sum_error * share * term
        with np.errstate(all="ignore"):
            error = np.abs(new - predicted) / np.maximum(allowed, FORMATS["float32"].smallest)
        # Only a prediction that is finite says anything; then a result that is not is wrong by any measure.
        excesses[name] = np.where(np.isfinite(predicted), np.where(np.isfinite(new), error, np.inf), 0.0)
    return excesses


def _difference(old: Array, new: Array) -> Array:
    """Infinity where they are not the same; NaN is the same as NaN."""
    return np.where((old == new) | (np.isnan(old) & np.isnan(new)), 0.0, np.inf)
