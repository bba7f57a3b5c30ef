"""Parameters that may be whole or each rank's own: next to sharded ones, and where code that no adapter knows
exchanges tensors within the forward pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from trueline.judge.stats.memoize import memoized
from trueline.schema.files.run_manifest import RankEnv
from trueline.store.reader import Run

EQUAL = 1e-6
"""Relative difference of two norms up to which they are one: equal gradients, added up in float64, differ by 1e-15."""


FIRST_STEPS = 8
"""Steps whose samples show whether ranks read the same ones."""


def param_names(env: RankEnv) -> list[str]:
    """The names behind ``param_digests``."""
    return [*env.params, *env.frozen]


def unshared_params(run: Run) -> frozenset[str]:
    """Parameters that are each rank's own and no replicas: experts among FSDP's ``ignored_params``, shards of a wrapper
    that no adapter knows. They were not equal at the first step with digests, and no gradient of theirs was ever the
    same on all ranks. Some were equal at first, such as a bias of zeros: these count beside the others where several
    ranks hold one expert, or parts of one model, or other parameters are reduced, so that it is not the reduction that
    lacks.
    """
    ranks = [rank for rank, env in run.env.items() if _in_doubt(env)]
    if len(ranks) < 2:
        return frozenset()
    env, differ = run.env[ranks[0]], _differ_at_first(run, ranks)
    if not differ or any(run.env[rank].whole != env.whole for rank in ranks):
        return frozenset()
    doubtful = [(at, name) for at, name in enumerate(env.params) if name in _in_doubt(env)]
    # An optimizer of float32 copies has no gradient norms under these names: then backward's own must tell.
    if updates_others(run, ranks):
        sets = _with_equal_losses(run)
        parts = {name for at, name in doubtful if sets and all(_never_equal_norms(run, ranks, at) for ranks in sets)}
        return frozenset(parts) if any(differ.get(name) for name in parts) else frozenset()
    unreduced = {name for at, name in doubtful if _never_reduced(run, ranks, at)}
    unshared = frozenset(name for name in unreduced if differ.get(name))
    if unshared and _with_equal_losses(run):
        return frozenset(unreduced)
    if not unshared or not (replica_sets(run, unshared) or len(unreduced) < len(doubtful)):
        return unshared
    modules = {_module(name) for name in unshared}
    return unshared | {name for name in unreduced if _module(name) in modules}


def equal_at_first(run: Run, names: Collection[str]) -> list[str]:
    """Names among ``names``, each rank's own, whose values all ranks had equal at the first step with digests."""
    differ = _differ_at_first(run, [rank for rank, env in run.env.items() if _in_doubt(env)])
    return [name for name in sorted(names) if not differ.get(name, True)]


def _differ_at_first(run: Run, ranks: Sequence[int]) -> dict[str, bool]:
    """By name of a parameter whether ``ranks`` had different values at the first step at which all of them have
    digests; empty where there is none, or they hold other numbers of parameters.
    """
    digests = run.lists("param_digests")
    step = min((step for step, _ in digests if all((step, rank) in digests for rank in ranks)), default=None)
    if step is None:
        return {}
    rows = [digests[step, rank] for rank in ranks]
    if any(len(row) != len(rows[0]) for row in rows):
        return {}
    names = param_names(run.env[ranks[0]])
    return dict(zip(names, np.any(np.stack(rows) != rows[0], axis=0).tolist(), strict=False))


def replica_sets(run: Run, names: Collection[str]) -> list[tuple[int, ...]]:
    """The ranks that began with equal values of all parameters of these ``names``, each rank's own, as replicas of one
    expert do: sets of two or more, all as large; none where they are not.
    """
    digests = run.lists("param_digests")
    ranks = [rank for rank in run.ranks if rank in run.env]
    step = min((step for step, _ in digests if all((step, rank) in digests for rank in ranks)), default=None)
    if step is None:
        return []
    by_values: defaultdict[bytes, list[int]] = defaultdict(list)
    for rank in ranks:
        is_listed = np.isin(param_names(run.env[rank]), sorted(names))
        by_values[digests[step, rank][: len(is_listed)][is_listed].tobytes()].append(rank)
    sets = [tuple(value) for value in by_values.values()]
    return sets if len({len(replicas) for replicas in sets}) == 1 < len(sets[0]) else []


@memoized
def parts_of_one_model(run: Run) -> tuple[tuple[int, ...], ...]:
    """Sets of ranks that compute one loss together from a batch that all of them read, each with parameters of its own:
    tensor parallelism by hand. Their losses are equal to the last bit, as of replicas with equal batches, and
    parameters are not, so that what they exchange within the forward pass has made them so.
    """
    return _with_equal_losses(run) if unshared_params(run) else ()


def compute_pieces(run: Run, ranks: Sequence[int]) -> bool:
    """True if ``ranks`` all exchange tensors within the forward pass, with some parameters of their own from the start
    and some that are common to them: tensor parallelism by hand, whose losses need not be equal where each rank has
    the loss of its own tokens (sequence parallelism).
    """
    if len(ranks) < 2 or not all(rank in run.env and run.env[rank].talks_in_forward for rank in ranks):
        return False
    unshared = unshared_params(run)
    return bool(unshared) and any(name not in unshared for name in run.env[ranks[0]].params)


def updates_others(run: Run, ranks: Sequence[int]) -> bool:
    """True if the optimizer holds none of the gradients that backward leaves, as where it updates float32 copies."""
    norms = run.lists("used_param_norms", ranks=ranks)
    return bool(run.lists("param_grad_norms", ranks=ranks)) and not any((row > 0).any() for row in norms.values())


def _with_equal_losses(run: Run) -> tuple[tuple[int, ...], ...]:
    """Sets of ranks that exchange tensors in the forward pass and have equal losses wherever they are known; or at the
    first step that has any, if they read the same samples then and after: copies that drift apart end it later.
    """
    losses_TN, measured_TN = run.pivot("loss")
    digests = run.lists("sample_digests", steps=run.steps[:FIRST_STEPS].tolist())
    by_losses: defaultdict[bytes, list[int]] = defaultdict(list)
    for column, rank in enumerate(run.ranks):
        known_T = measured_TN[:, column]
        if known_T.sum() > 1 and rank in run.env and run.env[rank].talks_in_forward:
            samples = b"".join(digests[pair].tobytes() for pair in sorted(digests) if pair[1] == rank)
            losses = losses_TN[known_T, column]
            key = known_T.tobytes() + (samples + losses[:1].tobytes() if samples else losses.tobytes())
            by_losses[key].append(rank)
    return tuple(tuple(equal_ranks) for equal_ranks in by_losses.values() if len(equal_ranks) > 1)


def _module(name: str) -> str:
    """Parent of the parameter's module: a bias may be zero everywhere when the weight beside it is not equal."""
    return ".".join(name.split(".")[:-2])


def _in_doubt(env: RankEnv) -> list[str]:
    return env.params if env.talks_in_forward else env.whole


def _never_equal_norms(run: Run, ranks: Sequence[int], index: int, *, column: str = "param_grad_norms") -> bool:
    """True if there were gradients of the parameter at ``index``, and never of one norm on all of ``ranks``. On ranks
    that compute one loss together, backward leaves equal ones of parameters that all of them hold.
    """
    norms = run.lists(column, ranks=ranks)
    steps = sorted({step for step, _ in norms})
    rows = [[norms[step, rank][index] for rank in ranks] for step in steps if all((step, r) in norms for r in ranks)]
    nonzero = [row for row in rows if max(row) > 0]
    return bool(nonzero) and all(max(row) - min(row) > EQUAL * max(row) for row in nonzero)


def _never_reduced(run: Run, ranks: list[int], index: int) -> bool:
    """True if gradients of the parameter at ``index`` were seen, and never had one norm on all of ``ranks``."""
    return _never_equal_norms(run, ranks, index, column="used_param_norms")
