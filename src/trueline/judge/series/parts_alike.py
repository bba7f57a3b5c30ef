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

MIN_ELEMENTS = 64
"""Elements of a parameter from which two ranks' that are equal by chance can be left out of account: also where an
update moves each element one way or the other, all as far."""

_MIN_IN_PROPORTION = 3
"""Parameters whose gradients are in one proportion for that to be no chance: it is measured to ``EQUAL``."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SharedParams:
    """``sets`` are of ranks, and the names of what they hold alike; with the environment of each rank, and the digests
    of its parameters by step, of the steps of all these ``runs``.
    """

    sets: tuple[tuple[tuple[int, ...], frozenset[str]], ...]
    env: dict[int, RankEnv]
    by_step: dict[int, dict[int, NDArray[Any]]]
    runs: tuple[Run, ...] = ()


def shared_params(run: Run) -> SharedParams | None:
    """Parameters that ranks of ``run``, and of the groups beside it, hold alike; None where none is known or
    measured.
    """
    declared = any(env.alike for env in run.env.values())
    if not declared and not run.groups:
        return None
    runs = (run, *map(Run, run.groups))
    envs = {rank: env for part in runs for rank, env in part.env.items()}
    by_step: defaultdict[int, dict[int, NDArray[Any]]] = defaultdict(dict)
    for part in runs:
        for (step, rank), digests in part.lists("param_digests").items():
            if step <= int(run.steps[-1]):
                by_step[step][rank] = digests
    names_by_ranks: dict[tuple[int, ...], frozenset[str]] = {}
    for env in envs.values():
        names = param_names(env)
        for alike in env.alike:
            ranks = tuple(rank for rank in alike.ranks if rank in envs and param_names(envs[rank]) == names)
            names_by_ranks.setdefault(ranks, frozenset(alike.params))
    if not declared:
        names = _copies(runs, envs, by_step)
        names_by_ranks = dict.fromkeys(zip(*(part.ranks for part in runs), strict=False), names)
    sets = tuple((ranks, names) for ranks, names in names_by_ranks.items() if len(ranks) > 1 and names)
    are_measured = any(sum(rank in digests for rank in ranks) > 1 for ranks, _ in sets for digests in by_step.values())
    return SharedParams(sets, envs, dict(by_step), runs) if are_measured else None


@memoized
def groups_share_one_model(run: Run) -> bool:
    """True if the ranks of the first group and of another hold different parts of one model, and copies of the rest. A
    first group is compared with all others.
    """
    if run.groups:
        return shared_params(run) is not None
    first = Run(run.beside[0]) if run.beside else None
    if first is None or not run.steps.size:
        return False
    envs = {**first.env, **run.env}
    by_step: defaultdict[int, dict[int, NDArray[Any]]] = defaultdict(dict)
    for part in (first, run):
        for (step, rank), digests in part.lists("param_digests").items():
            by_step[step][rank] = digests
    return any(env.alike for env in envs.values()) or bool(_copies((first, run), envs, by_step))


def _copies(
    runs: Sequence[Run], envs: Mapping[int, RankEnv], by_step: Mapping[int, Mapping[int, NDArray[Any]]]
) -> frozenset[str]:
    """The names of parameters that all ranks of ``runs`` hold in copies, while they hold parts of others.

    Copies begin equal to the bit, as may a bias of zeros that is cut. But they also move alike: either an update
    changed them and left them equal, or backward leaves equal gradients of them, as it does on ranks that compute one
    loss together. None where all parameters begin equal (these are replicas, that may train apart on purpose), where
    ranks read other samples, or hold other parameters.
    """
    ranks = sorted(envs)
    names = {tuple(param_names(env)) for env in envs.values()}
    looks = [step for step in sorted(by_step) if set(ranks) <= set(by_step[step])]
    replica_keys = {env.replica_key for env in envs.values()}
    if len(names) != 1 or len(replica_keys) != 1 or not looks or _read_other_samples(runs):
        return frozenset()
    sizes = {len(by_step[step][rank]) for step in looks for rank in ranks}
    params = names.pop()
    if sizes != {len(params)}:
        return frozenset()
    digests_TNP = np.array([[by_step[step][rank] for rank in ranks] for step in looks], dtype=np.uint64)
    equal_TP = np.all(digests_TNP == digests_TNP[:, :1], axis=1)
    if equal_TP[0].all() or not equal_TP[0].any():  # replicas, or models that share nothing
        return frozenset()
    until_TP = np.logical_and.accumulate(equal_TP, axis=0)
    sizes_P = [[env.param_sizes.get(name) for env in envs.values()] for name in params]
    large_P = np.array([all((size or 0) >= MIN_ELEMENTS for size in sizes) for sizes in sizes_P])
    moved_P = large_P & np.any(until_TP & (digests_TNP[:, 0] != digests_TNP[0, 0]), axis=0)
    alike_P = _gradients_alike(runs, looks, until_TP)
    same_size_P = np.array([len(set(sizes)) == 1 for sizes in sizes_P])
    return frozenset(np.array(params)[equal_TP[0] & same_size_P & (moved_P | alike_P)].tolist())


def _read_other_samples(runs: Sequence[Run]) -> bool:
    """True if ranks at one place in their groups are known to read different samples, or groups differ in size."""
    if len({len(run.ranks) for run in runs}) > 1:
        return True
    first, *later_runs = [
        {
            (step, run.ranks.index(rank)): digests.tobytes()
            for (step, rank), digests in run.lists("sample_digests", steps=run.steps[:FIRST_STEPS].tolist()).items()
        }
        for run in runs
    ]
    return any(first[key] != digests[key] for digests in later_runs for key in first.keys() & digests.keys())


def _gradients_alike(runs: Sequence[Run], looks: Sequence[int], until_TP: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[P] where ranks at one place in their groups had gradients of one norm, or of norms in a proportion that
    others had too, as where one of them clips: at every look up to which the values were equal, and at some look at
    which they were not zero.
    """
    num = until_TP.shape[1]
    always_P, ever_P = np.ones(num, dtype=np.bool_), np.zeros(num, dtype=np.bool_)
    norms = [run.lists("param_grad_norms", steps=[step for step in looks if step in set(run.steps)]) for run in runs]
    for look, step in enumerate(looks):
        for position in range(len(runs[0].ranks)):
            rows_of_runs = [rows.get((step, run.ranks[position])) for rows, run in zip(norms, runs, strict=True)]
            rows = [row for row in rows_of_runs if row is not None and len(row) <= num]
            if len(rows) < len(runs) or len({len(row) for row in rows}) > 1:
                continue
            norms_RP = np.zeros((len(runs), num))  # frozen parameters come last in the digests and have no norm
            norms_RP[:, : len(rows[0])] = rows
            filled_P = until_TP[look] & (norms_RP > 0).all(axis=0)
            always_P &= ~until_TP[look] | (norms_RP == 0).all(axis=0) | _in_proportion(norms_RP, filled_P)
            ever_P |= filled_P
    return always_P & ever_P


def _in_proportion(norms_RP: Floats, filled_P: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[P] columns among the ``filled`` ones that are constant, or have the proportions of at least two others."""
    norms_RP = norms_RP[:, filled_P] / norms_RP[:1, filled_P]
    difference_PP = np.abs(norms_RP[:, :, None] / norms_RP[:, None, :] - 1).max(axis=0)
    alike_P = filled_P.copy()
    in_one_proportion = np.sum(difference_PP <= EQUAL, axis=1) >= _MIN_IN_PROPORTION  # each counts itself
    alike_P[filled_P] = (np.abs(norms_RP - 1) <= EQUAL).all(axis=0) | in_one_proportion
    return alike_P
