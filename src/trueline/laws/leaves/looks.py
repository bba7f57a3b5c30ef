"""What the losses of a Run were computed from, at the steps that were looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trueline.judge.stats.memoize import memoized
from trueline.laws.leaves.columns import LossLeaves, OutsideLeaf
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run


@dataclass(frozen=True)
class Look:
    """One step of one rank; ``changes`` are ``leaf_changes``."""

    step: int
    rank: int
    leaves: LossLeaves
    changes: Sequence[int]

    @property
    def outside(self) -> list[tuple[OutsideLeaf, int]]:
        """What no parameter of the model is, with whether it has changed."""
        return list(zip(self.leaves.outside, self.changes, strict=False))

    @property
    def stale(self) -> list[str]:
        """Names of parameters that have changed since what is used of them was computed."""
        changes = self.changes[len(self.leaves.outside) :]
        return [name for name, change in zip(self.leaves.old, changes, strict=False) if change == 1]


@memoized
def looks(run: Run) -> tuple[Look, ...]:
    """All of them, by step and rank; raises ``CannotTell`` without any."""
    changes = run.lists("leaf_changes")
    rows = [
        Look(step, rank, LossLeaves.from_json(text), changes[step, rank].tolist() if (step, rank) in changes else ())
        for (step, rank), text in sorted(run.texts("loss_leaves").items())
    ]
    if not rows:
        raise CannotTell("no graph of a loss was looked at", reason="not-recorded")
    return tuple(rows)


def later_looks(run: Run) -> list[Look]:
    """Those that were compared with one before; raises ``CannotTell`` without any, and where the graph of a loss is
    larger than what is looked at.
    """
    all_looks = looks(run)
    compared = [look for look in all_looks if look.leaves.last_step is not None]
    if not compared:
        raise CannotTell("the graph of the loss was looked at at one step alone", reason="too-few-steps")
    return compared


def ask_for_whole_graphs(run: Run) -> None:
    """Raises ``CannotTell`` where no look saw all of a graph: nothing was found in what was seen."""
    if not any(look.leaves.complete for look in looks(run)):
        raise CannotTell("the graph of the loss is too large to be looked at as a whole", reason="undecidable")
