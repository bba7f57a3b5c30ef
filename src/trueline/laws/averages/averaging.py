"""Sampled elements of averages of parameters as a Run has them, and by which share they moved to what they follow.

An average e of a parameter p becomes e' = e + s (p - e), with the share s = 1 - d of a decay d, the same for all
elements. K elements of one slice.
"""

from __future__ import annotations

import itertools
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

_NON_NEGATIVE: Interval = (0.0, float("inf"))


@dataclass(frozen=True, eq=False)
class Piece:
    """Elements [K] of one tensor of an average, ``before`` and ``after`` a gap.

    ``model`` is what they follow, just after the gap, and ``earlier_model`` just before. ``unit`` and ``model_unit``
    are the unit roundoffs of both, ``tiny`` the smallest number. ``in_optimizer``: the optimizer holds the average's
    tensor; ``is_model_tensor``: both are one tensor.
    """

    name: str
    before: Array
    after: Array
    model: Array
    earlier_model: Array
    dtype: str
    unit: float
    model_unit: float
    tiny: float
    is_buffer: bool
    trains: bool
    in_optimizer: bool
    is_model_tensor: bool

    @property
    def moves(self) -> bool:
        """True if an element of the average is another one."""
        return bool((self.before != self.after).any())

    @property
    def is_finite(self) -> bool:
        """True if all elements are."""
        arrays = (self.before, self.after, self.model, self.earlier_model)
        return all(bool(np.isfinite(array).all()) for array in arrays)

    @cached_property
    def share(self) -> Interval:
        """Least and largest share s ≥ 0 by which all elements may have moved to ``model``; the least is the larger one
        where no s explains all of them.
        """
        return self.share_towards(self.model)

    def share_towards(self, target: Array) -> Interval:
        """Least and largest share s ≥ 0 by which all elements may have moved to ``target`` [K].

        The difference e' - e - s (p - e) is at most ``TOLERANCE`` units of the format of e, of |e| + |p|. Where p has a
        coarser format, in which s p may be rounded, as many units of that are added, of s |p|. Both are linear in s.
        """
        gap, moved = target - self.before, self.after - self.before
        fixed = TOLERANCE * self.unit * (np.abs(self.before) + np.abs(target)) + 2 * self.tiny
        is_coarser = self.model_unit > self.unit
        growing = TOLERANCE * self.model_unit * np.abs(target) if is_coarser else np.zeros_like(target)
        return _intersection([_at_least(gap + growing, moved - fixed), _at_least(growing - gap, -moved - fixed)])

    @property
    def is_far(self) -> NDArray[np.bool_]:
        """[K] whether the model's is further from the average than rounding the average explains."""
        return np.abs(self.model - self.before) > TOLERANCE * self.unit * (np.abs(self.before) + np.abs(self.model))


def _at_least(factor: Array, bound: Array) -> Interval:
    """The s ≥ 0 with factor * s ≥ bound everywhere."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotient = bound / factor
    low = float(np.max(quotient, where=factor > 0, initial=0.0))
    high = float(np.min(quotient, where=factor < 0, initial=float("inf")))
    impossible = bool((bound[factor == 0] > 0).any())
    return (float("inf"), 0.0) if impossible else (low, high)


def _intersection(intervals: Sequence[Interval]) -> Interval:
    return max((low for low, _ in intervals), default=0.0), min((high for _, high in intervals), default=float("inf"))


def common_share(intervals: Sequence[Interval]) -> Interval | None:
    """The shares that all intervals contain, None for none."""
    low, high = _intersection([_NON_NEGATIVE, *intervals])
    return (low, high) if low <= high else None


@dataclass(frozen=True, eq=False)
class Averaging:
    """Moves of one average on ``rank`` after the update of ``step``.

    ``key`` tells it from others, ``decay`` is the one that is declared. ``custom`` says that it is averaged by a
    function of the user's own, ``is_undeclared`` that it is like the model and nobody declared it, ``is_torchs`` that
    an ``AveragedModel`` holds it. It is of ``num_params`` parameters. ``num_moves``: between updates, how often it
    moved while the weights were the same. ``reads_buffers``: a module of it that has buffers was called in evaluation
    mode since the update before.
    """

    step: int
    rank: int
    key: str
    name: str
    gap: Gap
    decay: float | None
    custom: bool
    is_undeclared: bool
    pieces: tuple[Piece, ...]
    is_torchs: bool = False
    num_params: int = 0
    num_moves: int = 0
    reads_buffers: bool = False

    @property
    def params(self) -> list[Piece]:
        """Pieces of parameters that are finite and no tensors of the model itself."""
        return [piece for piece in self.pieces if not piece.is_buffer and not piece.is_model_tensor and piece.is_finite]

    @property
    def moves(self) -> bool:
        """True if a parameter of the average moves."""
        return any(piece.moves for piece in self.params)


def sampled_averagings(run: Run) -> list[Averaging]:
    """Averagings of all ranks, by step, then rank, in the order of time."""
    values = run.lists("average_values")
    averagings: list[Averaging] = []
    for key, text in run.texts("average_facts").items():
        if key in values:
            start = 0
            for facts in json.loads(text):
                # Each slice has the elements of the average, then as many of the model, at every moment.
                size = 2 * sum(int(entry[1]) for entry in facts["slices"])
                end = start + size * len(facts["moments"])
                moments = values[key][start:end].reshape(len(facts["moments"]), size)
                averagings += _averagings(key[1], facts, moments)
                start = end
    return sorted(averagings, key=lambda averaging: (averaging.step, averaging.rank))


def _averagings(rank: int, facts: Any, moments: Array) -> Iterator[Averaging]:
    ends = np.cumsum([int(entry[1]) for entry in facts["slices"] for _ in range(2)])[:-1]
    arrays_by_moment = [np.split(moment, ends) for moment in moments]
    gaps: tuple[Gap, ...] = ("call",) if facts["moments"][0] == "call" else ("update", "between")
    for number, gap in enumerate(gaps):
        # between updates there may be looks in front of forward passes, too
        last = number + 1 if gap != "between" else len(moments) - 1
        pieces = list(_pieces(facts["slices"], arrays_by_moment[number], arrays_by_moment[last]))
        if gap != "update":  # what follows something that moves meanwhile is not judged
            pieces = [
                piece
                for piece in pieces
                if piece.is_buffer or piece.is_model_tensor or (piece.model == piece.earlier_model).all()
            ]
        if pieces:
            settings = {name: facts[name] for name in ("key", "name", "decay", "custom")}
            yield Averaging(
                facts["step"],
                rank,
                gap=gap,
                pieces=tuple(pieces),
                is_undeclared=facts.get("found", False),
                is_torchs=facts.get("torchs", False),
                num_params=facts.get("has", 0),
                reads_buffers=facts.get("reads", False),
                num_moves=_num_moves(facts["slices"], arrays_by_moment[number : last + 1]),
                **settings,
            )


def _num_moves(entries: Sequence[Any], moments: Sequence[Sequence[Array]]) -> int:
    """From how many of ``moments`` to the next one a parameter of the average moves; 0 where the model does, and
    without a look in between.
    """
    if len(moments) < 3:
        return 0
    params = [i for i, entry in enumerate(entries) if not entry[4]]
    pairs = list(itertools.pairwise(moments))
    if any((before[2 * i + 1] != after[2 * i + 1]).any() for before, after in pairs for i in params):
        return 0
    return sum(any((before[2 * i] != after[2 * i]).any() for i in params) for before, after in pairs)


def _pieces(entries: Sequence[Any], before: Sequence[Array], after: Sequence[Array]) -> Iterator[Piece]:
    """Pieces of the formats that are known; arrays are of the average and of the model by turns."""
    for i, (name, _, dtype, model_dtype, is_buffer, trains, in_optimizer, is_model_tensor, *_) in enumerate(entries):
        if dtype in FORMATS and model_dtype in FORMATS:
            yield Piece(
                name=str(name),
                before=before[2 * i],
                after=after[2 * i],
                model=after[2 * i + 1],
                earlier_model=before[2 * i + 1],
                dtype=str(dtype),
                unit=FORMATS[dtype].unit,
                model_unit=FORMATS[model_dtype].unit,
                tiny=FORMATS[dtype].smallest,
                is_buffer=is_buffer,
                trains=trains,
                in_optimizer=in_optimizer,
                is_model_tensor=is_model_tensor,
            )
