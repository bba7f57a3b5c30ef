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


@dataclass(frozen=True)
class NormPass:
    """One pass of the module ``name`` on ``rank`` at ``step``, its ``number``-th there.

    ``size`` values of each channel went in, with ``sums`` and ``squares`` [C]. ``before`` and ``after`` are the count
    of batches, running means [C] and variances [C]. ``ranks`` are those over which SyncBatchNorm normalises, None where
    it is this one alone. ``tracks`` is whether it is to change them, ``momentum`` None for the mean of all batches.
    ``unit`` is the unit roundoff of the running statistics, ``summed`` that of the sums they are made of. ``again``:
    made within a backward pass. ``frozen``: none of its parameters asks for a gradient.
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
    summed: float
    again: bool
    frozen: bool


@dataclass(frozen=True)
class Counted:
    """Of a module on ``rank`` at ``step``: how many batches it had counted before its first pass and at the end of the
    step, and how many of the passes in between were to be counted, ``again`` of them within a backward pass.
    """

    step: int
    rank: int
    name: str
    first: float
    last: float
    passes: int
    again: int


def sampled_passes(run: Run) -> tuple[list[NormPass], list[Counted]]:
    """All of them, by step, then rank, in the order in which they were made."""
    values = run.lists("norm_values")
    passes: list[NormPass] = []
    counted: list[Counted] = []
    for key, text in run.texts("norm_facts").items():
        if key not in values:
            continue
        facts = json.loads(text)
        modules = cast(Sequence[Mapping[str, Any]], facts["modules"])
        here = list(_passes(key, modules, facts["passes"], values[key]))
        passes += here
        for module, last in zip(modules, values[key], strict=False):
            first = next((one.before[0] for one in here if one.name == module["name"]), math.nan)
            counted.append(Counted(*key, module["name"], first, float(last), module["counted"], module["again"]))
    return passes, counted


def _passes(
    key: tuple[int, int], modules: Sequence[Mapping[str, Any]], passes: Sequence[Mapping[str, Any]], values: Array
) -> Iterator[NormPass]:
    numbers: defaultdict[str, int] = defaultdict(int)
    at = len(modules)
    for facts in passes:
        module = modules[int(facts["of"])]
        num = int(facts["num"])
        parts = np.split(values[at : at + 6 * num + 2], np.cumsum([1, num, num, num, num, 1, num]))
        at += 6 * num + 2
        if facts["dtype"] not in FORMATS or facts["read"] not in FORMATS:
            continue
        name = str(module["name"])
        yield NormPass(
            *key,
            name=name,
            number=numbers[name],
            size=float(facts["size"]),
            sums=parts[3],
            squares=parts[4],
            before=(float(parts[0][0]), parts[1], parts[2]),
            after=(float(parts[5][0]), parts[6], parts[7]),
            ranks=None if module["ranks"] is None else tuple(module["ranks"]),
            training=facts["training"],
            tracks=facts["tracks"],
            momentum=facts["momentum"],
            unit=FORMATS[facts["dtype"]].unit,
            summed=min(FORMATS[facts["read"]].unit, FORMATS["float32"].unit),
            again=facts["again"],
            frozen=module["frozen"],
        )
        numbers[name] += 1


def whole_batch(one: NormPass, others: Mapping[tuple[int, int, str, int], NormPass]) -> NormPass | None:
    """The pass with what all ``ranks`` of SyncBatchNorm read; None where some of that is not there. ``others`` are all
    passes by step, rank, name and number.
    """
    if one.ranks is None or not one.training:
        return one
    every = [others.get((one.step, rank, one.name, one.number)) for rank in one.ranks]
    there = [each for each in every if each is not None]
    if len(there) < len(every) or any(each.again != one.again for each in there):
        return None
    return replace(
        one,
        size=sum(each.size for each in there),
        sums=np.sum([each.sums for each in there], axis=0),
        squares=np.sum([each.squares for each in there], axis=0),
    )


def excess(of: NormPass) -> dict[str, Array] | None:
    """Of ``mean``, ``variance`` [C] and ``count`` [1] by how much they are off, over what rounding may explain (more
    than 1: it cannot); None where nothing is known.

    With running' = (1 - m) running + m batch, and the unbiased variance of the batch (torch.nn.BatchNorm2d). The terms
    are rounded to the format of the running statistics, by ``TOLERANCE`` units at most. A sum of n values is off by up
    to n u times the sum of their magnitudes in any order (Higham 2002, Accuracy and Stability of Numerical Algorithms,
    section 4.2): kernels that add up one by one reach a third of that for values that are all the same. ``SUMS`` is how
    many such sums there are, that of squares where the kernel computes the variance as a difference. Our own are in
    float64.
    """
    (count, mean, variance), (counted, new_mean, new_variance) = of.before, of.after
    if not of.tracks:
        same = [_differ(mean, new_mean), _differ(variance, new_variance)]
        return {"mean": same[0], "variance": same[1], "count": _differ(np.array([count]), np.array([counted]))}
    share = 1 / (count + 1) if of.momentum is None else of.momentum
    if of.size < 2 or not math.isfinite(share):
        return None
    batch_mean = of.sums / of.size
    largest = of.squares / (of.size - 1)
    batch_variance = largest - of.sums * batch_mean / (of.size - 1)
    of_sum = of.size * (of.summed + FORMATS["float64"].unit)
    found: dict[str, Array] = {"count": _differ(np.array([count + 1]), np.array([counted]))}
    for name, old, batch, term, new in (
        ("mean", mean, batch_mean, np.sqrt(largest), new_mean),
        ("variance", variance, batch_variance, largest, new_variance),
    ):
        predicted = (1 - share) * old + share * batch
        allowed = TOLERANCE * of.unit * ((1 - share) * np.abs(old) + share * term) + SUMS[name] * of_sum * share * term
        with np.errstate(all="ignore"):
            off = np.abs(new - predicted) / np.maximum(allowed, FORMATS["float32"].smallest)
        found[name] = np.where(np.isfinite(predicted), np.where(np.isfinite(new), off, np.inf), 0.0)
    return found


def _differ(old: Array, new: Array) -> Array:
    """Infinity where they are not the same; NaN is the same as NaN."""
    return np.where((old == new) | (np.isnan(old) & np.isnan(new)), 0.0, np.inf)
