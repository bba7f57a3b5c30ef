"""What each later start of a job had at its first update, beside what the starts before had left.

How a start ended says what is known of it: where watching closed, digests of all there was then; where a later start
repeats steps, what the start before had at the same step; where it was killed, what it had at the steps before.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trueline.judge.series.rewound import rewound_to
from trueline.judge.stats.memoize import memoized
from trueline.laws.restarts.sampled_states import SampledStates, sampled_states
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

States = Mapping[str, Mapping[str, str]]
"""Digests by name of the state, then by parameter."""


@dataclass(frozen=True)
class TakenOver:
    """One rank at the start that goes on from ``step``.

    ``weights`` are names and pairs of digests, as they were left and as they are; where the start before was killed,
    and nobody looked at what it left (``is_killed``), as they last were. ``repeats`` says that it goes on from the
    checkpoint of an earlier step, ``at``, that was looked at. ``initial`` are those that the job first began with,
    ``like_step`` the step that began with the weights of this start. ``states_left`` and ``states_taken`` are those of
    the optimizer: None where nobody looked at them as watching ended, and empty where it held none. Then ``sampled``
    are those of some elements, where they are known.
    """

    step: int
    rank: int
    weights: Mapping[str, tuple[int, int]]
    initial: Mapping[str, int]
    states_left: States | None
    states_taken: States
    is_killed: bool = False
    repeats: bool = False
    like_step: int | None = None
    at: int = 0
    sampled: SampledStates | None = None

    @cached_property
    def other_weights(self) -> list[str]:
        """Parameters that are not as they were left."""
        return [name for name, (before, after) in self.weights.items() if before != after]

    @property
    def is_of_other_weights(self) -> bool:
        """True where it goes on from other weights than it should, as far as that is known."""
        return self.begins_anew if self.is_killed else bool(self.other_weights)

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
        if self.sampled is not None:
            return list(self.sampled.gone)
        params = {param for by_param in (self.states_left or {}).values() for param in by_param}
        return sorted(params - {param for by_param in self.states_taken.values() for param in by_param})

    @cached_property
    def other_states(self) -> list[str]:
        """Parameters whose states are others, and not those of another parameter."""
        if self.sampled is not None:
            return list(self.sampled.other)
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
    """By start, then rank. Raises ``CannotTell`` where the job was started once, or nobody looked at the weights."""
    if not run.restarts:
        raise CannotTell("the job was started once", reason="by-design")
    starts = [start for step in run.restarts for start in _starts_at(run, step)]
    if not starts:
        raise CannotTell("nobody looked at the weights of a start and of the one before")
    return starts


@memoized
def left_before(run: Run, restart: int) -> Run:
    """``run.left_before``, read once."""
    return run.left_before(restart)


def _starts_at(run: Run, step: int) -> Iterator[TakenOver]:
    ends = run.lists("closing_digests", steps=[step - 1])
    # Where each rank closed, nothing else need be read: a job may be started many times.
    is_closed = all((step - 1, rank) in ends for rank in run.env)
    before = run if is_closed else left_before(run, step)
    first = int(before.steps[0]) if len(before.steps) else step
    opening, initial = run.lists("param_digests", steps=[step]), before.lists("param_digests", steps=[first])
    opening_states, closing_states = run.texts("opening_states"), run.texts("closing_states")
    # Without a count of updates the number of the step says nothing of the checkpoint.
    is_counted = any(attempt.step == step and attempt.updates for attempt in run.manifest.attempts[1:])
    for rank in sorted(run.env):
        names = [*run.env[rank].params, *run.env[rank].frozen]
        closing = ends.get((step - 1, rank))
        rows = (
            {at: row for (at, _), row in before.lists("param_digests", ranks=[rank]).items()} if closing is None else {}
        )
        taken, at_first = opening.get((step, rank)), initial.get((first, rank))
        # What goes on from where the start before ended is of no earlier step.
        goes_on = closing is not None and taken is not None and np.array_equal(closing, taken)
        like_step = None if goes_on else rewound_to(run, rank, step, before=None if is_closed else before)
        # a start with the weights of the very beginning has loaded none
        at = like_step if like_step is not None and like_step > first and not is_counted else step
        repeats = closing is None and at in rows
        left = closing if closing is not None else rows.get(at, rows[max(rows)] if rows else None)
        # another length: the model was changed in between
        if left is None or taken is None or not len(left) == len(taken) == len(names):
            continue
        has_first = at_first is not None and len(at_first) == len(names)
        text = None if closing is None else closing_states.get((step - 1, rank))
        yield TakenOver(
            step,
            rank,
            dict(zip(names, zip(map(int, left), map(int, taken), strict=True), strict=True)),
            dict(zip(names, map(int, at_first), strict=True)) if at_first is not None and has_first else {},
            None if text is None else json.loads(text),
            json.loads(opening_states.get((step, rank), "{}")),
            is_killed=closing is None and not repeats,
            repeats=repeats,
            like_step=like_step,
            at=at,
            sampled=None if closing is not None else sampled_states(run, before, step, rank, at=at),
        )


def ranks_at(starts: Sequence[TakenOver]) -> dict[int, list[TakenOver]]:
    """Those of each step, by rank."""
    by_step: defaultdict[int, list[TakenOver]] = defaultdict(list)
    for start in starts:
        by_step[start.step].append(start)
    return dict(by_step)
