"""Sampled elements of averages of parameters as a Run has them, and by which share they moved to what they follow.

An average e of a parameter p becomes e' = e + s (p - e), with the share s = 1 - d of a decay d, the same for all
elements. K elements of one slice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trueline.judge.series.update_rules import TOLERANCE, Array
from trueline.schema.formats import FORMATS
from trueline.store.reader import Run

Gap = Literal["update", "between", "call"]
"""In the optimizer's update; from there to the next one; in a call of torch's AveragedModel."""

Interval = tuple[float, float]

_ALL: Interval = (0.0, float("inf"))


@dataclass(frozen=True, eq=False)
class Piece:
    """Elements [K] of one tensor of an average: ``before`` and ``after``, and what it follows, ``model`` just after and
    ``earlier`` just before. ``unit`` and ``of_model`` are their unit roundoffs, ``tiny`` the smallest number. ``held``:
    the optimizer holds the average's; ``same``: both are one tensor.
    """

    name: str
    before: Array
    after: Array
    model: Array
    earlier: Array
    dtype: str
    unit: float
    of_model: float
    tiny: float
    is_buffer: bool
    trains: bool
    held: bool
    same: bool

    @property
    def moves(self) -> bool:
        """Whether an element of the average is another one."""
        return bool((self.before != self.after).any())

    @property
    def is_finite(self) -> bool:
        """Whether all elements are."""
        return all(bool(np.isfinite(each).all()) for each in (self.before, self.after, self.model, self.earlier))

    @cached_property
    def share(self) -> Interval:
        """Least and largest share s ≥ 0 by which all elements may have moved to ``model``; the least is the larger one
        where no s explains all of them.
        """
        return self.share_of(self.model)

    def share_of(self, model: Array) -> Interval:
        """The same of another ``model``.

        The difference e' - e - s (p - e) is at most ``TOLERANCE`` units of the format of e, of |e| + |p|, and where p
        has a coarser one, in which s p may be rounded, as many of that, of s |p|. Both are linear in s.
        """
        gap, moved = model - self.before, self.after - self.before
        fixed = TOLERANCE * self.unit * (np.abs(self.before) + np.abs(model)) + 2 * self.tiny
        growing = TOLERANCE * self.of_model * np.abs(model) if self.of_model > self.unit else np.zeros_like(model)
        return _meet([_at_least(gap + growing, moved - fixed), _at_least(growing - gap, -moved - fixed)])

    @property
    def apart(self) -> NDArray[np.bool_]:
        """[K] whether the model's is further from the average than rounding the average explains."""
        return np.abs(self.model - self.before) > TOLERANCE * self.unit * (np.abs(self.before) + np.abs(self.model))


def _at_least(factor: Array, right: Array) -> Interval:
    """The s ≥ 0 with factor * s ≥ right everywhere."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotient = right / factor
    low = float(np.max(quotient, where=factor > 0, initial=0.0))
    high = float(np.min(quotient, where=factor < 0, initial=float("inf")))
    impossible = bool((right[factor == 0] > 0).any())
    return (float("inf"), 0.0) if impossible else (low, high)


def _meet(intervals: Sequence[Interval]) -> Interval:
    return max((low for low, _ in intervals), default=0.0), min((high for _, high in intervals), default=float("inf"))


def agree(intervals: Sequence[Interval]) -> Interval | None:
    """What all intervals have in common, None for nothing."""
    low, high = _meet([_ALL, *intervals])
    return (low, high) if low <= high else None


@dataclass(frozen=True, eq=False)
class Averaging:
    """What one average did on ``rank`` after the update of ``step``. ``key`` tells it from others, ``decay`` is the one
    that is declared, ``custom`` says that it is averaged by a function of the user's own, ``found`` that it is a module
    like the model which nobody declared.
    """

    step: int
    rank: int
    key: str
    name: str
    gap: Gap
    decay: float | None
    custom: bool
    found: bool
    pieces: tuple[Piece, ...]

    @property
    def params(self) -> list[Piece]:
        """Those of parameters, which are no model's own, and finite."""
        return [each for each in self.pieces if not each.is_buffer and not each.same and each.is_finite]

    @property
    def moves(self) -> bool:
        """Whether a parameter of the average moves."""
        return any(each.moves for each in self.params)


def sampled_averagings(run: Run) -> list[Averaging]:
    """All of them, by step, then rank, in the order of time."""
    values = run.lists("average_values")
    found: list[Averaging] = []
    for key, text in run.texts("average_facts").items():
        if key in values:
            at = 0
            for facts in json.loads(text):
                size = 2 * sum(int(each[1]) for each in facts["slices"])
                end = at + size * len(facts["moments"])
                found += _averagings(key[1], facts, values[key][at:end].reshape(len(facts["moments"]), size))
                at = end
    return sorted(found, key=lambda each: (each.step, each.rank))


def _averagings(rank: int, facts: Any, moments: Array) -> Iterator[Averaging]:
    ends = np.cumsum([int(each[1]) for each in facts["slices"] for _ in range(2)])[:-1]
    split = [np.split(each, ends) for each in moments]
    gaps: tuple[Gap, ...] = ("call",) if facts["moments"][0] == "call" else ("update", "between")
    for number, gap in enumerate(gaps):
        before, after = split[number], split[number + 1]
        pieces = [
            Piece(
                name=str(each[0]),
                before=before[2 * at],
                after=after[2 * at],
                model=after[2 * at + 1],
                earlier=before[2 * at + 1],
                dtype=str(each[2]),
                unit=FORMATS[each[2]].unit,
                of_model=FORMATS[each[3]].unit,
                tiny=FORMATS[each[2]].smallest,
                is_buffer=each[4],
                trains=each[5],
                held=each[6],
                same=each[7],
            )
            for at, each in enumerate(facts["slices"])
            if each[2] in FORMATS and each[3] in FORMATS
        ]
        if gap != "update":  # what follows something that moves meanwhile is not judged
            pieces = [each for each in pieces if each.is_buffer or each.same or (each.model == each.earlier).all()]
        if pieces:
            settings = {name: facts[name] for name in ("key", "name", "decay", "custom")}
            found = facts.get("found", False)
            yield Averaging(facts["step"], rank, gap=gap, pieces=tuple(pieces), found=found, **settings)
