"""Parameters that ranks hold alike which hold one model together: norms and embeddings beside what tensor parallelism
cuts. The ranks may be in Runs of their own, beside this one.

T looks at the parameters, P parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.judge.series.whole_parameters import EQUAL, FIRST_STEPS, param_names
from trueline.judge.stats.memoize import memoized
from trueline.schema.files.run_manifest import RankEnv
from trueline.store.reader import Run

FEWEST = 64
"""Elements of a parameter from which two ranks' that are equal by chance can be left out of account: also where an
update moves each element one way or the other, all as far."""

_ALIKE = 3
"""Parameters whose gradients are in one proportion for that to be no chance: it is measured to ``EQUAL``."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HeldAlike:
    """``sets`` are of ranks, and the names of what they hold alike; with the environment of each rank, and the digests
    of its parameters by step, of the steps of all these ``runs``.
    """

    sets: tuple[tuple[tuple[int, ...], frozenset[str]], ...]
    env: dict[int, RankEnv]
    by_step: dict[int, dict[int, NDArray[Any]]]
    runs: tuple[Run, ...] = ()


def held_alike(run: Run) -> HeldAlike | None:
    """What ranks of ``run``, and of the groups beside it, hold alike; None where nothing is known or measured."""
    declared = any(env.alike for env in run.env.values())
    if not declared and not run.groups:
        return None
    runs = (run, *map(Run, run.groups))
    env = {rank: own for each in runs for rank, own in each.env.items()}
    by_step: defaultdict[int, dict[int, NDArray[Any]]] = defaultdict(dict)
    for each in runs:
        for (step, rank), digests in each.lists("param_digests").items():
            if step <= int(run.steps[-1]):
                by_step[step][rank] = digests
    found: dict[tuple[int, ...], frozenset[str]] = {}
    for own in env.values():
        for alike in own.alike:
            ranks = tuple(rank for rank in alike.ranks if rank in env and param_names(env[rank]) == param_names(own))
            found.setdefault(ranks, frozenset(alike.params))
    if not declared:
        names = _copies(runs, env, by_step)
        found = dict.fromkeys(zip(*(each.ranks for each in runs), strict=False), names)
    sets = tuple((ranks, names) for ranks, names in found.items() if len(ranks) > 1 and names)
    together = any(sum(rank in held for rank in ranks) > 1 for ranks, _ in sets for held in by_step.values())
    return HeldAlike(sets, env, dict(by_step), runs) if together else None


@memoized
def other_parts_beside(run: Run) -> bool:
    """Whether the ranks of the first group and of another hold other parts of one model, and copies of the rest; of a
    first group this is asked about all others.
    """
    if run.groups:
        return held_alike(run) is not None
    first = Run(run.beside[0]) if run.beside else None
    if first is None or not run.steps.size:
        return False
    env = {**first.env, **run.env}
    by_step: defaultdict[int, dict[int, NDArray[Any]]] = defaultdict(dict)
    for each in (first, run):
        for (step, rank), digests in each.lists("param_digests").items():
            by_step[step][rank] = digests
    return any(own.alike for own in env.values()) or bool(_copies((first, run), env, by_step))


def _copies(
    runs: Sequence[Run], env: Mapping[int, RankEnv], by_step: Mapping[int, Mapping[int, NDArray[Any]]]
) -> frozenset[str]:
    """The names of parameters that all ranks of ``runs`` hold in copies, while they hold parts of others.

    Copies begin equal to the bit, as may a bias of zeros that is cut. But they also move alike: either an update
    changed them and left them equal, or backward leaves equal gradients of them, as it does on ranks that compute one
    loss together. None where all parameters begin equal (these are replicas, that may train apart on purpose), where
    ranks read other samples, or hold other parameters.
    """
    ranks = sorted(env)
    names = {tuple(param_names(own)) for own in env.values()}
    looks = [step for step in sorted(by_step) if set(ranks) <= set(by_step[step])]
    if len(names) != 1 or len({own.replica_key for own in env.values()}) != 1 or not looks or _read_apart(runs):
        return frozenset()
    sizes = {len(by_step[step][rank]) for step in looks for rank in ranks}
    every = names.pop()
    if sizes != {len(every)}:
        return frozenset()
    held_TNP = np.array([[by_step[step][rank] for rank in ranks] for step in looks], dtype=np.uint64)
    equal_TP = np.all(held_TNP == held_TNP[:, :1], axis=1)
    if equal_TP[0].all() or not equal_TP[0].any():
        return frozenset()
    until_TP = np.logical_and.accumulate(equal_TP, axis=0)
    large_P = np.array([all(own.param_sizes.get(name, 0) >= FEWEST for own in env.values()) for name in every])
    moved_P = large_P & np.any(until_TP & (held_TNP[:, 0] != held_TNP[0, 0]), axis=0)
    alike_P = _gradients_alike(runs, looks, until_TP)
    same_shape_P = np.array([len({own.param_sizes.get(name) for own in env.values()}) == 1 for name in every])
    return frozenset(np.array(every)[equal_TP[0] & same_shape_P & (moved_P | alike_P)].tolist())


def _read_apart(runs: Sequence[Run]) -> bool:
    """Whether ranks at one place in their groups are known to read other samples, or groups have other sizes."""
    if len({len(run.ranks) for run in runs}) > 1:
        return True
    first, *others = [
        {
            (step, run.ranks.index(rank)): read.tobytes()
            for (step, rank), read in run.lists("sample_digests", steps=run.steps[:FIRST_STEPS].tolist()).items()
        }
        for run in runs
    ]
    return any(first[key] != read[key] for read in others for key in first.keys() & read.keys())


def _gradients_alike(runs: Sequence[Run], looks: Sequence[int], until_TP: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[P] whether ranks at one place in their groups had gradients of one norm, or of norms in a proportion that
    others had too, as where one of them clips: at each look up to which the values were equal, and at some one at
    which they were not zero.
    """
    num = until_TP.shape[1]
    always_P, ever_P = np.ones(num, dtype=np.bool_), np.zeros(num, dtype=np.bool_)
    norms = [run.lists("param_grad_norms", steps=[step for step in looks if step in set(run.steps)]) for run in runs]
    for look, step in enumerate(looks):
        for place in range(len(runs[0].ranks)):
            rows = [norm.get((step, run.ranks[place])) for norm, run in zip(norms, runs, strict=True)]
            held = [row for row in rows if row is not None and len(row) <= num]
            if len(held) < len(runs) or len({len(row) for row in held}) > 1:
                continue
            norms_RP = np.zeros((len(runs), num))
            norms_RP[:, : len(held[0])] = held
            filled_P = until_TP[look] & (norms_RP > 0).all(axis=0)
            always_P &= ~until_TP[look] | (norms_RP == 0).all(axis=0) | _in_proportion(norms_RP, filled_P)
            ever_P |= filled_P
    return always_P & ever_P


def _in_proportion(norms_RP: Floats, filled_P: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[P] which of the ``filled`` columns are constant, or have the proportions of at least two others."""
    norms_RP = norms_RP[:, filled_P] / norms_RP[:1, filled_P]
    apart_PP = np.abs(norms_RP[:, :, None] / norms_RP[:, None, :] - 1).max(axis=0)
    found_P = filled_P.copy()
    found_P[filled_P] = (np.abs(norms_RP - 1) <= EQUAL).all(axis=0) | (np.sum(apart_PP <= EQUAL, axis=1) >= _ALIKE)
    return found_P
