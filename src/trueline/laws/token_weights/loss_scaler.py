"""Faults of gradient scalers: updates left out to the end, a scale of no use, a state that was not restored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from trueline.store.reader import Run

LEAST_SCALE = 1.0
"""A scale below is to keep small gradients from underflow, and makes them smaller: "something is likely wrong"
(torch.amp.GradScaler.update)."""

MIN_UPDATES = 3
"""Updates from which a scale of no use is no passing one."""

FaultKind = Literal["left-out", "collapsed", "began-anew"]


@dataclass(frozen=True)
class ScalerState:
    """State of a scaler before an update, or (``closing``) after the last one: the number of updates it left out, its
    scale then, and the factors by which that grows and shrinks.
    """

    num_left_out: int
    scale: float
    growth: float
    backoff: float


@dataclass(frozen=True)
class Fault:
    """Fault of the scaler of ``rank`` from ``first`` to ``last`` step; ``now`` is the scale there, ``before`` that
    which it was.
    """

    kind: FaultKind
    rank: int
    first: int
    last: int
    now: float
    before: float
    num_left_out: int = 0


def find_faults(run: Run) -> list[Fault]:
    """Faults of the scalers of all ranks; none where no scaler was seen."""
    by_rank: defaultdict[int, dict[int, ScalerState]] = defaultdict(dict)
    for (step, rank), state in _read_states(run, "loss_scaler").items():
        by_rank[rank][step] = state
    closing = {rank: (step, state) for (step, rank), state in _read_states(run, "closing_loss_scaler").items()}
    starts = [attempt.step for attempt in run.manifest.attempts[1:]]
    faults: list[Fault] = []
    for rank, by_step in by_rank.items():
        states = sorted(by_step.items())
        last = states[-1][1]
        low = [(step, state) for step, state in states if state.scale < LEAST_SCALE]
        highest = max(state.scale for _, state in states)
        # a scaler that begins below 1 was set so on purpose
        if len(low) >= MIN_UPDATES and states[0][1].scale >= LEAST_SCALE:
            faults.append(Fault("collapsed", rank, low[0][0], low[-1][0], low[-1][1].scale, highest))
        faults += [Fault("began-anew", rank, step, step, now, before) for step, now, before in _resets(states, starts)]
        if rank in closing and _is_dead(closing[rank][1], last):
            step, end = closing[rank]
            faults.append(Fault("left-out", rank, step, step, end.scale, last.scale, end.num_left_out))
    return faults


def _read_states(run: Run, column: str) -> Mapping[tuple[int, int], ScalerState]:
    return {
        key: ScalerState(int(values[0]), *(float(value) for value in values[1:]))
        for key, values in run.lists(column).items()
    }


def _is_dead(end: ScalerState, last: ScalerState) -> bool:
    """True where updates ended before the training did: a scale that shrinks as it should and is not small yet may
    still come to one that helps.
    """
    shrunk = last.scale * last.growth * end.backoff**end.num_left_out
    return end.num_left_out >= MIN_UPDATES and not LEAST_SCALE <= end.scale <= min(shrunk, last.scale * end.backoff)


def _resets(states: Sequence[tuple[int, ScalerState]], starts: Sequence[int]) -> list[tuple[int, float, float]]:
    """Steps at which a start of the job had the scale of the very first one, with that scale and the one before. Scales
    that follow from the one before are none: updates left out, one growth, one update left out before the checkpoint.
    """
    first = states[0][1]
    resets: list[tuple[int, float, float]] = []
    for (step_before, old), (step, new) in pairwise(states):
        if not any(step_before < start <= step for start in starts) or new != first:
            continue
        shrunk = old.scale * new.backoff**new.num_left_out
        restored = [shrunk * factor for factor in (1.0, new.growth, new.backoff)]
        if new.scale not in restored:
            resets.append((step, new.scale, old.scale))
    return resets
