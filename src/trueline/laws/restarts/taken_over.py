"""What each later start of a job had at its first update of what the start before had left at its last."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from trueline.judge.stats.memoize import memoized
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

States = Mapping[str, Mapping[str, str]]
"""Digests by name of the state, then by parameter."""


@dataclass(frozen=True)
class TakenOver:
    """One rank at the start that goes on from ``step``. ``weights`` are names and pairs of digests, as they were left
    and as they are; ``initial`` those that the Run first began with. ``states_left`` and ``states_taken`` are those of
    the optimizer: None where nobody looked as watching ended, and empty where it held none.
    """

    step: int
    rank: int
    weights: Mapping[str, tuple[int, int]]
    initial: Mapping[str, int]
    states_left: States | None
    states_taken: States

    @cached_property
    def other_weights(self) -> list[str]:
        """Parameters that are not as they were left."""
        return [name for name, (before, after) in self.weights.items() if before != after]

    @property
    def begins_anew(self) -> bool:
        """True where all other weights are those that the Run first began with."""
        names = self.other_weights
        return bool(names) and all(self.initial.get(name) == self.weights[name][1] for name in names)

    @cached_property
    def moved_states(self) -> Mapping[str, str]:
        """Parameters with states that others had, and which: by all states of one name that differ."""
        moves: dict[str, str] = {}
        for state, by_param in (self.states_left or {}).items():
            owners: defaultdict[str, list[str]] = defaultdict(list)
            for param, digest in by_param.items():
                owners[digest].append(param)
            for param, digest in self.states_taken.get(state, {}).items():
                # States of zeros, or of parameters that are one, are alike without having moved.
                if param in by_param and digest != by_param[param] and len(owners[digest]) == 1:
                    moves[param] = owners[digest][0]
        return moves

    @cached_property
    def missing_states(self) -> list[str]:
        """Parameters that had states and have none."""
        params = {param for by_param in (self.states_left or {}).values() for param in by_param}
        return sorted(params - {param for by_param in self.states_taken.values() for param in by_param})

    @cached_property
    def other_states(self) -> list[str]:
        """Parameters whose states are others, and not those of another parameter."""
        states_left = self.states_left or {}
        params = {
            param
            for state, by_param in self.states_taken.items()
            for param, digest in by_param.items()
            if states_left.get(state, {}).get(param, digest) != digest
        }
        return [param for param in sorted(params) if param not in self.moved_states]


@memoized
def taken_over(run: Run) -> list[TakenOver]:
    """By start, then rank. Raises ``CannotTell`` where the job was started once, or nobody looked at both ends."""
    if not run.restarts:
        raise CannotTell("the job was started once", reason="by-design")
    # a start closes at the step before the next one opens; the first step has the initial weights
    steps = sorted({step - near for step in run.restarts for near in (0, 1)} | {int(run.steps[0])})
    closing, opening = run.lists("closing_digests", steps=steps), run.lists("param_digests", steps=steps)
    closing_states, opening_states = run.texts("closing_states"), run.texts("opening_states")
    starts: list[TakenOver] = []
    for step in run.restarts:
        for rank in sorted(run.env):
            names = [*run.env[rank].params, *run.env[rank].frozen]
            rows = [closing.get((step - 1, rank)), opening.get((step, rank))]
            # no row: it was killed, or the next repeats steps; another length: the model was changed in between
            if any(row is None or len(row) != len(names) for row in rows):
                continue
            before, after = ([int(digest) for digest in row] for row in rows if row is not None)
            first = opening.get((int(run.steps[0]), rank))
            initial = (
                {} if first is None or len(first) != len(names) else dict(zip(names, map(int, first), strict=True))
            )
            text = closing_states.get((step - 1, rank))
            starts.append(
                TakenOver(
                    step,
                    rank,
                    dict(zip(names, zip(before, after, strict=True), strict=True)),
                    initial,
                    None if text is None else json.loads(text),
                    json.loads(opening_states.get((step, rank), "{}")),
                )
            )
    if not starts:
        raise CannotTell(
            "no start goes on from the step at which the one before had ended as it should, with its weights looked at"
        )
    return starts


def ranks_at(starts: Sequence[TakenOver]) -> dict[int, list[TakenOver]]:
    """Those of each step, by rank."""
    by_step: defaultdict[int, list[TakenOver]] = defaultdict(list)
    for start in starts:
        by_step[start.step].append(start)
    return dict(by_step)
