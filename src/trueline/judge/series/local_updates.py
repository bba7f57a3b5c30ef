"""Whether replicas update by themselves between averagings, on purpose: declared, recognised, or seen in weights."""

from __future__ import annotations

import itertools
from collections import defaultdict
from math import gcd

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.stats.memoize import memoized
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

ENOUGH = 3
"""Returns to equal weights that make a rhythm."""


def require_equal_replicas(run: Run) -> None:
    """Raise ``CannotTell`` where replicas update by themselves between averagings, on purpose."""
    declared = next((env.local_updates for env in run.env.values() if env.local_updates), "")
    if declared:
        raise CannotTell(
            f"replicas update by themselves and are averaged now and then, on purpose ({declared})", reason="by-design"
        )
    every = equal_again_every(run)
    if every is not None:
        raise CannotTell(
            f"replicas update by themselves and are equal again every {every} steps, as in local SGD (if that is not "
            f"meant, some update is not averaged: look at what happens every {every} steps)",
            reason="by-design",
        )


def updates_locally(run: Run) -> bool:
    """Whether replicas need not be equal after every update."""
    return any(env.local_updates for env in run.env.values()) or equal_again_every(run) is not None


@memoized
def equal_again_every(run: Run) -> int | None:
    """The number of steps after which replicas that had parted hold equal weights again, each time; None where they do
    not, or fewer than ``ENOUGH`` times.

    Weights that parted by a fault never become equal by themselves, to the last bit, so a rhythm shows that something
    averages or copies them. At all other steps that were looked at they must differ.
    """
    ranks = set(data_parallel_ranks(run))
    held: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
    for (step, rank), digests in run.lists("param_digests").items():
        if rank in ranks:
            held[step].append(tuple(digests.tolist()))
    equal = {step: len(set(each)) == 1 for step, each in held.items() if len(each) == len(ranks)}
    parted = min((step for step, same in equal.items() if not same), default=None)
    if len(ranks) < 2 or parted is None:
        return None
    again = sorted(step for step, same in equal.items() if same and step > parted)
    if len(again) < ENOUGH:
        return None
    every = gcd(*(later - earlier for earlier, later in itertools.pairwise(again)))
    in_rhythm = all(same == (step % every == again[0] % every) for step, same in equal.items() if step >= parted)
    return every if every > 1 and in_rhythm else None


def digests_alike(run: Run) -> frozenset[bool]:
    """Whether all workers held equal parameters at a step with digests of all of them: each answer that there is."""
    ranks = data_parallel_ranks(run)
    held: defaultdict[int, list[bytes]] = defaultdict(list)
    for (step, _), digests in run.lists("param_digests", ranks=ranks).items():
        held[step].append(digests.tobytes())
    return frozenset(len(set(each)) == 1 for each in held.values() if len(each) == len(ranks) > 1)
