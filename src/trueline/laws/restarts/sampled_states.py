"""States of the optimizer before the first update of a start, where only some elements of them were looked at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trueline.judge.series.sampled_updates import Slice, slices_of
from trueline.judge.series.update_rules import GRAD, PARAM, Array
from trueline.store.reader import Run


@dataclass(frozen=True)
class SampledStates:
    """Parameters whose states are ``gone``: the update made them anew, and the start before had held some; and those
    whose states are ``other`` elements than the start before had at the same step.
    """

    gone: tuple[str, ...]
    other: tuple[str, ...]


def sampled_states(run: Run, before: Run, step: int, rank: int, *, at: int) -> SampledStates | None:
    """Of the start of ``run`` at ``step``, which goes on from the checkpoint of step ``at``; ``before`` is the Run as
    earlier starts had left it. None where no update was sampled on both sides, or the optimizer has no states.
    """
    steps = {number for number, owner in before.texts("update_facts") if owner == rank}
    nearest = max((number for number in steps if number <= at), default=None)
    if nearest is None:
        return None
    new_slices, old_slices = _slices(run, step, rank), _slices(before, nearest, rank)
    held = any(_states(part.before) for part in old_slices.values())
    if not new_slices or not held or not any(_states(part.after) for part in new_slices.values()):
        return None
    gone = [key[0] for key, part in new_slices.items() if _states(part.after) and not _states(part.before)]
    pairs = [(key[0], old_slices[key], part) for key, part in new_slices.items() if nearest == at and key in old_slices]
    other = [name for name, old, new in pairs if name not in gone and not _are_equal(old, new)]
    return SampledStates(tuple(dict.fromkeys(gone)), tuple(dict.fromkeys(other)))


def _slices(run: Run, step: int, rank: int) -> dict[tuple[str, int], Slice]:
    """By parameter and first element."""
    key = (step, rank)
    text = run.texts("update_facts").get(key)
    values = run.lists("update_values", steps=[step], ranks=[rank]).get(key)
    if text is None or values is None:
        return {}
    return {(part.name, part.start): part for part in slices_of(key, json.loads(text), values) if part.is_own}


def _states(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: values for name, values in arrays.items() if name not in (PARAM, GRAD)}


def _are_equal(old: Slice, new: Slice) -> bool:
    olds, news = _states(old.before), _states(new.before)
    return all(np.array_equal(values, news[name], equal_nan=True) for name, values in olds.items() if name in news)
