"""Parameters that ranks hold alike which hold one model together: norms and embeddings beside what tensor parallelism
cuts. The ranks may be in Runs of their own, beside this one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from trueline.analyze.parameters.whole_parameters import param_names
from trueline.schema.files.run_manifest import RankEnv
from trueline.store.reader import Run


@dataclass(frozen=True)
class HeldAlike:
    """``sets`` are of ranks, and the names of what they hold alike; with the environment of each rank, and the digests
    of its parameters by step, of the steps of all these Runs.
    """

    sets: tuple[tuple[tuple[int, ...], frozenset[str]], ...]
    env: dict[int, RankEnv]
    by_step: dict[int, dict[int, NDArray[Any]]]


def held_alike(run: Run) -> HeldAlike | None:
    """What ranks of ``run``, and of the groups beside it, hold alike; None where nothing is known or measured."""
    if not any(env.alike for env in run.env.values()):
        return None
    runs = [run, *map(Run, run.groups)]
    env = {rank: own for each in runs for rank, own in each.env.items()}
    found: dict[tuple[int, ...], frozenset[str]] = {}
    for own in env.values():
        for alike in own.alike:
            ranks = tuple(rank for rank in alike.ranks if rank in env and param_names(env[rank]) == param_names(own))
            found.setdefault(ranks, frozenset(alike.params))
    sets = tuple((ranks, names) for ranks, names in found.items() if len(ranks) > 1)
    by_step: defaultdict[int, dict[int, NDArray[Any]]] = defaultdict(dict)
    for each in runs:
        for (step, rank), digests in each.lists("param_digests").items():
            if step <= int(run.steps[-1]):
                by_step[step][rank] = digests
    together = any(sum(rank in held for rank in ranks) > 1 for ranks, _ in sets for held in by_step.values())
    return HeldAlike(sets, env, dict(by_step)) if together else None
