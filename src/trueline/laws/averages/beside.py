"""What a job holds beside its model that is like the weights, and how it follows them: averages, target networks,
references.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from trueline.judge.stats.memoize import memoized
from trueline.laws.averages.averaging import Averaging, Interval, Piece, common_share, sampled_averagings
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

FEWEST = 3
"""Samples in which something moves to the weights by a share of less than 1, from which on it is an average, as of
``average-differs``."""

Relation = Literal["average", "set", "untouched", "equal", "other"]
"""It moves to the weights by a share; is set to them now and then; stays as it was when it was equal to them; is equal
to them at every look; or none of these.
"""

_KEY = "averages["


@dataclass(frozen=True)
class Change:
    """What became of the weights and a copy between the update of ``since`` and the next one: ``num`` elements that
    were looked at, and of how many the weights changed, the copy did, both are ``equal`` now, and the copy is
    ``outside`` of what it was and what the weights were.
    """

    since: int
    num: int
    weights: int
    copy: int
    equal: int
    outside: int


@dataclass(frozen=True, eq=False)
class CopyOfWeights:
    """One of a rank in one start of the job, which begins at step ``start``. ``averagings`` and ``changes`` are in the
    order of time.
    """

    name: str
    rank: int
    start: int
    averagings: Sequence[Averaging]
    changes: Sequence[Change]

    @property
    def num_params(self) -> int:
        return self.averagings[0].num_params

    @property
    def between(self) -> list[Averaging]:
        """From an update to the next one."""
        return [averaging for averaging in self.averagings if averaging.gap == "between" and averaging.params]

    @property
    def opening(self) -> list[Piece]:
        """At the first update that was looked at: ``before`` it, ``earlier_model``."""
        first = self.averagings[0]
        return first.params if first.gap == "update" else []

    @property
    def begins_equal(self) -> bool:
        """True if it was equal to the weights, of which not all are alike, in front of that update."""
        pieces = self.opening
        is_equal = all(bool((piece.before == piece.earlier_model).all()) for piece in pieces)
        return is_equal and any(len(set(piece.before.tolist())) > 1 for piece in pieces)

    @property
    def ends_apart(self) -> bool:
        """True if it was further from the weights than rounding explains when it was looked at last."""
        last = self.averagings[-1]
        return any(
            bool((abs(piece.model - piece.after) > 2 * max(piece.unit, piece.model_unit) * abs(piece.model)).any())
            for piece in last.params
        )

    @cached_property
    def shares(self) -> list[Interval]:
        """By which it moved towards the weights from an update to the next one, where one share explains it."""
        return [share for averaging in self.between if averaging.moves if (share := _share(averaging)) is not None]

    @property
    def relation(self) -> Relation:
        moving = [averaging for averaging in self.averagings if averaging.moves]
        if not moving and not any(change.copy for change in self.changes):
            return "untouched" if self.begins_equal else "other"
        if any(piece.in_optimizer for averaging in self.averagings for piece in averaging.pieces):
            return "other"
        parts = [share for share in self.shares if share[1] < 1]
        # of those that begin with copies, as of a schedule of the decay
        if len(parts) >= FEWEST and len(self.shares) == sum(averaging.moves for averaging in self.between):
            return "average"
        sets = [change for change in self.changes if change.copy]
        if sets and all(change.equal == change.num for change in sets):
            return "equal" if len(sets) == len(self.changes) > 1 else "set"
        return "other"

    @property
    def share(self) -> float:
        """The middle one of the shares of an average that are less than 1."""
        return statistics.median((low + min(high, 1.0)) / 2 for low, high in self.shares if high < 1)


def _share(averaging: Averaging) -> Interval | None:
    return common_share([(0.0, 1.0), *(piece.share for piece in averaging.params if piece.moves)])


@memoized
def copies_of_weights(run: Run) -> tuple[CopyOfWeights, ...]:
    """By start, rank and number; raises ``CannotTell`` where none was seen."""
    by_copy: defaultdict[tuple[int, int, str], list[Averaging]] = defaultdict(list)
    for averaging in sampled_averagings(run):
        if averaging.gap != "call":
            by_copy[_start_of(run, averaging.step), averaging.rank, averaging.key].append(averaging)
    if not by_copy:
        raise CannotTell("no copies of the weights beside the model were seen", reason="by-design")
    changes = _changes(run)
    return tuple(
        CopyOfWeights(averagings[0].name, rank, start, averagings, changes.get((start, rank, key), []))
        for (start, rank, key), averagings in sorted(by_copy.items())
    )


def _changes(run: Run) -> Mapping[tuple[int, int, str], list[Change]]:
    changes: defaultdict[tuple[int, int, str], list[Change]] = defaultdict(list)
    for (step, rank), numbers in sorted(run.lists("copy_changes").items()):
        for number, since, *counts in numbers.reshape(-1, 7).astype(int).tolist():
            changes[_start_of(run, step), rank, f"{_KEY}{number}]"].append(Change(since, *counts))
    return changes


def _start_of(run: Run, step: int) -> int:
    return max([int(run.steps[0]), *(start for start in run.restarts if start <= step)])
