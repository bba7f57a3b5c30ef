"""Counts of updates that optimizers with rules of their own keep, and that stay where they began."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from trueline.judge.series.sampled_updates import Slice, sampled_updates
from trueline.judge.series.update_rules import PARAM
from trueline.store.reader import Run

FEWEST = 8
"""Sampled updates that changed parameters and were not counted."""


@dataclass(frozen=True)
class StayingCount:
    """``slices`` of one optimizer, after all of which its ``count`` is the same. ``factor`` is by how much correcting
    moments as at the first update makes late ones too large; None where it declares no betas.
    """

    slices: Sequence[Slice]
    count: float
    factor: float | None


def staying_counts(run: Run) -> list[StayingCount]:
    """Of the first rank, at most one an optimizer. Raises ``CannotTell`` where no update was sampled."""
    sampled = sampled_updates(run).slices
    rank = min((sample.rank for sample in sampled), default=0)
    by_optimizer: defaultdict[int, list[Slice]] = defaultdict(list)
    for sample in sampled:
        if not sample.law and sample.rank == rank:
            by_optimizer[sample.optimizer_number].append(sample)
    return [
        StayingCount(counted, count, _factor(counted[-1].settings))
        for slices in by_optimizer.values()
        if (counted := [sample for sample in slices if _count(sample) is not None])
        and (count := _same_count(counted)) is not None
        and not _counts_elsewhere(slices)
    ]


def _count(sample: Slice) -> float | None:
    count = sample.numbers_after.get("step")
    # apex has one count a group, which is read before the update
    if count is None and "betas" in sample.settings and isinstance(sample.settings.get("step"), int):
        count = float(sample.settings["step"])
    return count


def _same_count(slices: Sequence[Slice]) -> float | None:
    """The count after all of them, where that is the one that they began with."""
    counts = {_count(sample) for sample in slices}
    moved = {sample.step for sample in slices if (sample.after[PARAM] != sample.before[PARAM]).any()}
    (count,) = counts if len(counts) == 1 else (None,)
    return count if count in (0.0, 1.0) and len(moved) >= FEWEST else None


def _counts_elsewhere(slices: Sequence[Slice]) -> bool:
    """True if a number of the groups goes up by one or more at each update, as the ``k`` of Prodigy."""
    settings = {sample.step: sample.settings for sample in slices}
    rows = [settings[step] for step in sorted(settings)]
    return any(
        all(isinstance(row.get(name), (int, float)) for row in rows)
        and all(row[name] - before[name] >= 1 for before, row in pairwise(rows))
        for name in rows[0]
    )


def _factor(settings: Mapping[str, Any]) -> float | None:
    betas = settings.get("betas")
    if not isinstance(betas, list) or len(cast(list[Any], betas)) != 2:
        return None
    numbers = [beta for beta in cast(list[Any], betas) if isinstance(beta, float) and 0 <= beta < 1]
    return math.sqrt(1 - numbers[1]) / (1 - numbers[0]) if len(numbers) == 2 else None
