"""States of an optimizer that are older, or others, at an update than the update before had left them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Literal

import numpy as np

from trueline.judge.series.sampled_updates import Slice, sampled_updates
from trueline.judge.series.update_rules import GRAD, PARAM, TOLERANCE, Array
from trueline.store.reader import Run

Kind = Literal["older", "gone", "replaced"]


@dataclass(frozen=True)
class Lost:
    """States of one parameter as an update ``left`` and as a later one ``found`` them: of fewer updates (``older``),
    ``gone``, or with other elements (``replaced``), by ``names``. ``new`` says that another optimizer was made since,
    ``known`` that the job had gone on: its weights were as they had been left, or its schedule went on.
    """

    left: Slice
    found: Slice
    kind: Kind
    names: Sequence[str]
    new: bool
    known: bool


def lost_states(run: Run) -> list[Lost]:
    """All of them, by step. Starts of the job begin anew, and so do weights that were changed, too, as by loading a
    checkpoint of both. Raises ``CannotTell`` where no update was sampled.
    """
    slices = sampled_updates(run).slices
    starts = [attempt.step for attempt in run.manifest.attempts[1:]]
    by_param: defaultdict[tuple[int, str], defaultdict[int, list[Slice]]] = defaultdict(lambda: defaultdict(list))
    seen: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for each in slices:
        if each.is_own and each.law:
            by_param[each.rank, each.name][each.step].append(each)
            seen[each.rank, each.made].append(each.step)
    pairs = [
        (left, found)
        for (rank, _), samples in by_param.items()
        for (_, left), (_, found) in pairwise(sorted(samples.items()))
        if not any(left[0].step < start <= found[0].step for start in starts)
        and (left[0].law, left[0].optimizer) == (found[0].law, found[0].optimizer)
        and (left[0].made == found[0].made or seen[rank, left[0].made][-1] < seen[rank, found[0].made][0])
    ]
    moved, same = set[tuple[int, int]](), set[tuple[int, int]]()
    for left, found in pairs:
        for old, new in _together(left, found, PARAM):
            (same if np.array_equal(old, new) else moved).add((found[0].rank, found[0].step))
    goes_on = _goes_on(run.lists("schedule_epochs"))
    lost: list[Lost] = []
    for left, found in pairs:
        place = (found[0].rank, found[0].step)
        if place not in moved:
            known = place in same or goes_on(left[0], found[0])
            lost += [
                Lost(left[0], found[0], kind, names, left[0].made != found[0].made, known)
                for kind, names in _what(left, found)
            ]
    return sorted(lost, key=lambda each: each.found.step)


def _goes_on(epochs: Mapping[tuple[int, int], np.ndarray]) -> Callable[[Slice, Slice], bool]:
    """Whether a schedule was further at one slice than at another."""

    def further(left: Slice, found: Slice) -> bool:
        before, after = (epochs.get((each.step, each.rank), np.zeros(0)) for each in (left, found))
        return before.shape == after.shape and before.size > 0 and bool(np.all(after > before))

    return further


def _what(left: Sequence[Slice], found: Sequence[Slice]) -> Iterator[tuple[Kind, Sequence[str]]]:
    """What of these states is lost, at most one thing."""
    count, now = left[0].numbers_after.get("step"), found[0].numbers_before.get("step", 0.0)
    if count is not None and now < count:
        yield "older", ["step"]
        return
    names = [name for name in left[0].after if name not in (PARAM, GRAD)]
    if gone := [name for name in names if name not in found[0].before]:
        yield "gone", gone
    elif others := [n for n in names if any(_is_other(*both) for both in _together(left, found, n))]:
        yield "replaced", others


def _together(left: Sequence[Slice], found: Sequence[Slice], name: str) -> Iterator[tuple[Array, Array]]:
    """The elements that both samples of a parameter have, as one update left and the very next found them."""
    for old, new in product(left, found):
        first, end = max(old.start, new.start), min(old.end, new.end)
        if new.step == old.step + 1 and first < end and name in old.after and name in new.before:
            yield (
                old.after[name][first - old.start : end - old.start],
                new.before[name][first - new.start : end - new.start],
            )


def _is_other(old: Array, new: Array) -> bool:
    """Whether elements were changed, other than all by one factor, as momentum is where the learning rate changes."""
    if np.array_equal(old, new) or not (np.isfinite(old).all() and np.isfinite(new).all()):
        return False
    top = int(np.argmax(np.abs(old)))
    factor = new[top] / old[top] if old[top] else 0.0
    return not factor or not np.allclose(new, factor * old, rtol=TOLERANCE * 2.0**-8, atol=0.0)
