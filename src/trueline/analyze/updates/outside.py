"""Parameters with a gradient that the optimizer does not hold and that nothing else moves either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trueline.analyze.stats.memoize import memoized
from trueline.analyze.updates.samples import sampled_updates
from trueline.store.reader import Run

FEWEST = 3
"""Updates between the first and the last digest: a warm-up may begin with a learning rate of 0."""


@dataclass(frozen=True)
class Left:
    """Parameters of ``rank`` that stayed bit for bit from ``step_first`` to ``step_last`` though they had gradients.
    The optimizer (``optimizers`` by class) holds ``num_held`` of the model's parameters.
    """

    rank: int
    names: Sequence[str]
    step_first: int
    step_last: int
    num_held: int
    optimizers: Sequence[str]


@memoized
def left_alone(run: Run) -> tuple[Left, ...]:
    """By rank. Raises ``CannotTell`` where no update was sampled."""
    sampled = sampled_updates(run)
    found: list[Left] = []
    for rank in sorted({rank for _, rank in sampled.outside}):
        steps = sorted(step for step, of in sampled.outside if of == rank)
        names = [n for n in sampled.outside[steps[0], rank] if all(n in sampled.outside[s, rank] for s in steps)]
        stayed = _stayed(run, rank, names, steps[0])
        if stayed and names and steps[-1] - steps[0] >= FEWEST:
            held = max(sampled.held[step, rank] for step in steps)
            found.append(Left(rank, stayed, steps[0], steps[-1], held, sampled.optimizers))
    return tuple(found)


def _stayed(run: Run, rank: int, names: Sequence[str], first: int) -> list[str]:
    """Those of ``names`` whose digests from step ``first`` on are all equal, at more than one step."""
    if not names or rank not in run.env:
        return []
    rows = [digests for (step, of), digests in run.lists("param_digests").items() if of == rank and step >= first]
    closing = [digests for (_, of), digests in run.lists("closing_digests").items() if of == rank]
    every = [*rows, *closing]
    if len(rows) < FEWEST or len({len(digests) for digests in every}) != 1:
        return []
    table = np.stack(every)
    same = (table == table[0]).all(axis=0)
    place = {name: index for index, name in enumerate(run.env[rank].params)}
    return [name for name in names if name in place and place[name] < len(same) and same[place[name]]]
