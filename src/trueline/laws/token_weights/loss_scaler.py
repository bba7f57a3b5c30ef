"""What a gradient scaler did, update by update, and whether its scale is of use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from trueline.store.reader import Run

LEAST = 1.0
"""A scale below is to keep small gradients from underflow, and makes them smaller: "something is likely wrong"
(torch.amp.GradScaler.update)."""

FEWEST = 3
"""Updates from which a scale of no use is no passing one."""

Kind = Literal["left-out", "collapsed", "began-anew"]


@dataclass(frozen=True)
class Scaling:
    """What a scaler did before an update, or (``closing``) after the last one: how many updates it left out, its scale
    then, and by what that grows and shrinks.
    """

    num_left_out: int
    scale: float
    growth: float
    backoff: float


@dataclass(frozen=True)
class Fault:
    """What is wrong with the scaler of ``rank`` from ``first`` to ``last`` step; ``now`` is the scale there, ``before``
    what it was.
    """

    kind: Kind
    rank: int
    first: int
    last: int
    now: float
    before: float
    num_left_out: int = 0


def faults_of(run: Run) -> list[Fault]:
    """Those of all ranks; none where no scaler was seen."""
    by_rank: defaultdict[int, dict[int, Scaling]] = defaultdict(dict)
    for (step, rank), scaling in _seen(run, "loss_scaler").items():
        by_rank[rank][step] = scaling
    closing = {rank: (step, scaling) for (step, rank), scaling in _seen(run, "closing_loss_scaler").items()}
    starts = [attempt.step for attempt in run.manifest.attempts[1:]]
    found: list[Fault] = []
    for rank, by_step in by_rank.items():
        every = sorted(by_step.items())
        low = [(step, each) for step, each in every if each.scale < LEAST]
        highest = max(each.scale for _, each in every)
        if len(low) >= FEWEST and every[0][1].scale >= LEAST:
            found.append(Fault("collapsed", rank, low[0][0], low[-1][0], low[-1][1].scale, highest))
        found += [Fault("began-anew", rank, step, step, now, before) for step, now, before in _anew(every, starts)]
        if rank in closing and _is_dead(closing[rank][1], every[-1][1]):
            step, end = closing[rank]
            found.append(Fault("left-out", rank, step, step, end.scale, every[-1][1].scale, end.num_left_out))
    return found


def _seen(run: Run, column: str) -> Mapping[tuple[int, int], Scaling]:
    return {
        key: Scaling(int(values[0]), *(float(each) for each in values[1:])) for key, values in run.lists(column).items()
    }


def _is_dead(end: Scaling, last: Scaling) -> bool:
    """Whether updates ended before the training did: a scale that shrinks as it should and is not small yet may still
    come to one that helps.
    """
    shrunk = last.scale * last.growth * end.backoff**end.num_left_out
    return end.num_left_out >= FEWEST and not LEAST <= end.scale <= min(shrunk, last.scale * end.backoff)


def _anew(every: Sequence[tuple[int, Scaling]], starts: Sequence[int]) -> list[tuple[int, float, float]]:
    """The steps at which a start of the job had the scale of the very first one, and not the one before: with the
    updates that were left out, one growth, and one update left out just before the checkpoint.
    """
    first = every[0][1]
    found: list[tuple[int, float, float]] = []
    for (before, old), (step, new) in pairwise(every):
        if not any(before < start <= step for start in starts) or new != first:
            continue
        goes_on = [old.scale * new.backoff**new.num_left_out * by for by in (1.0, new.growth, new.backoff)]
        if new.scale not in goes_on:
            found.append((step, new.scale, old.scale))
    return found
