"""Replicas that update by themselves between averagings on purpose: declared, recognised, or seen in weights."""

from __future__ import annotations

import itertools
from collections import defaultdict
from math import gcd

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.stats.memoize import memoized
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

MIN_RETURNS = 3
"""Returns to equal weights that make a rhythm."""


def require_equal_replicas(run: Run) -> None:
    """Raise ``CannotTell`` where replicas update by themselves between averagings, on purpose."""
    declared = next((env.local_updates for env in run.env.values() if env.local_updates), "")
    if declared:
        raise CannotTell(
            f"replicas update by themselves and are averaged now and then, on purpose ({declared})", reason="by-design"
        )
    period = averaging_period(run)
    if period is not None:
        raise CannotTell(
            f"replicas update by themselves and are equal again every {period} steps, as in local SGD (if that is not "
            f"meant, some update is not averaged: look at what happens every {period} steps)",
            reason="by-design",
        )


def updates_locally(run: Run) -> bool:
    """True if replicas need not be equal after every update."""
    return any(env.local_updates for env in run.env.values()) or averaging_period(run) is not None


@memoized
def averaging_period(run: Run) -> int | None:
    """The number of steps after which replicas that had parted hold equal weights again, each time; None where they do
    not, or fewer than ``MIN_RETURNS`` times.

    Weights that parted by a fault never become equal by themselves, to the last bit, so a rhythm shows that something
    averages or copies them. At all other steps that were looked at they must differ.
    """
    ranks = set(data_parallel_ranks(run))
    digests_by_step: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
    for (step, rank), digests in run.lists("param_digests").items():
        if rank in ranks:
            digests_by_step[step].append(tuple(digests.tolist()))
    equal = {step: len(set(rows)) == 1 for step, rows in digests_by_step.items() if len(rows) == len(ranks)}
    parted = min((step for step, is_equal in equal.items() if not is_equal), default=None)
    if len(ranks) < 2 or parted is None:
        return None
    again = sorted(step for step, is_equal in equal.items() if is_equal and step > parted)
    if len(again) < MIN_RETURNS:
        return None
    period = gcd(*(later - earlier for earlier, later in itertools.pairwise(again)))
    phase = again[0] % period
    in_rhythm = all(is_equal == (step % period == phase) for step, is_equal in equal.items() if step >= parted)
    return period if period > 1 and in_rhythm else None


def digests_alike(run: Run) -> frozenset[bool]:
    """Answers to whether all workers held equal parameters, over the steps with digests of all of them."""
    ranks = data_parallel_ranks(run)
    digests_by_step: defaultdict[int, list[bytes]] = defaultdict(list)
    for (step, _), digests in run.lists("param_digests", ranks=ranks).items():
        digests_by_step[step].append(digests.tobytes())
    return frozenset(len(set(rows)) == 1 for rows in digests_by_step.values() if len(rows) == len(ranks) > 1)
