"""Parameters that were trained until some step and are trained no more: no update changes them, or their gradient is
exactly zero.

L looks at digests, S steps with gradients, P parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueline.judge.series.sampled_updates import sampled_updates
from trueline.judge.series.update_rules import PARAM
from trueline.store.reader import Run

FEWEST = 16
"""Steps with a gradient that a parameter stays at: as many as `untrained` asks for."""
FEWEST_MOVES = 3
"""Looks at which it had changed before, and updates of which its optimizer is known afterwards."""
SHARE, FEWEST_LARGE = 0.25, 8
"""Steps after it stopped at which rate times gradient is as large as at the quarter of those that moved it least."""
LONG = ("torch.float32", "torch.float64")
"""Dtypes of parameters that are looked at: in 16 bits rounding loses updates as weights grow (`update-lost`)."""

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StoppedParams:
    """``names`` of ``rank``, of which nothing has changed from ``step_first`` to ``step_last``, by ``num_steps`` steps
    with gradients. ``optimizer`` is the class of what holds them.
    """

    rank: int
    names: Sequence[str]
    optimizer: str
    step_first: int
    step_last: int
    num_steps: int


@dataclass(frozen=True)
class ZeroSince:
    """``names`` had a gradient on some of the ``ranks`` until ``step_first``, and exactly zero on all from there to
    ``step_last``. ``all_zero`` are those of them of which all values that were sampled since are 0 as well; ``whole``:
    they are all that is trained.
    """

    names: Sequence[str]
    ranks: Sequence[int]
    step_first: int
    step_last: int
    num_steps: int
    all_zero: Sequence[str]
    whole: bool


def stopped_params(run: Run) -> list[StoppedParams]:
    """By rank and step. Raises ``CannotTell`` where no update was sampled."""
    sampled = sampled_updates(run)
    stopped: list[StoppedParams] = []
    for rank in sorted(run.env):
        env = run.env[rank]
        # after a change of the parameters, positions are of others
        if env.lists:
            continue
        holders = [step for step, sample_rank in sampled.num_held if sample_rank == rank]
        names_from: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
        last = 0
        dtype_of = dict(zip(env.params, env.param_dtypes, strict=False))
        still = _still(run, rank, env.params)
        # Of a bias alone all elements may be near 0 in its gradient.
        moving_modules = {name.rpartition(".")[0] for name in env.params if name not in still}
        for name, (start, num_steps, end) in still.items():
            if dtype_of.get(name) not in LONG or name.rpartition(".")[0] in moving_modules:
                continue
            held = [step for step in holders if step >= start]
            outside = any(name in sampled.outside[step, rank] or not sampled.num_held[step, rank] for step in held)
            if len(held) >= FEWEST_MOVES and not outside:
                names_from[start, num_steps].append(name)
                last = end
        optimizers = [name.rpartition(".")[2] for name in sampled.optimizers]
        stopped += [
            StoppedParams(rank, names, optimizers[0], start, last, num_steps)
            for (start, num_steps), names in sorted(names_from.items())
            if len(optimizers) == 1
        ]
    return stopped


def _still(run: Run, rank: int, names: Sequence[str]) -> Mapping[str, tuple[int, int, int]]:
    """By name of what has moved and then stays although it has gradients: the first step of these, how many such steps
    there are, and the last.
    """
    digests, at_end, norms, rates_of = (
        {step: row for (step, _), row in run.lists(column, ranks=[rank]).items()}
        for column in ("param_digests", "closing_digests", "param_grad_norms", "lr")
    )
    looks = sorted(digests.items(), key=lambda look: look[0])
    closing = [(step + 1, row) for step, row in at_end.items()]
    looks += closing[-1:]
    if len(looks) < 2 * FEWEST_MOVES or not norms or not closing:
        return {}
    if any(len(row) < len(names) for _, row in looks) or any(len(row) != len(names) for row in norms.values()):
        return {}
    digests_LP = np.array([row[: len(names)] for _, row in looks])
    steps_L = np.array([step for step, _ in looks])
    changed_LP = digests_LP[1:] != digests_LP[:-1]
    steps_S = np.array(sorted(norms.keys() & rates_of.keys()))
    if not len(steps_S):
        return {}
    norms_SP = np.stack([norms[step] for step in steps_S.tolist()])
    # of several groups whose a parameter is in is not known: none may stand still
    rates_S = np.array([float(np.min(rates_of[step], initial=np.inf)) for step in steps_S.tolist()])
    still: dict[str, tuple[int, int, int]] = {}
    for p, name in enumerate(names):
        moves = np.flatnonzero(changed_LP[:, p])
        if len(moves) < FEWEST_MOVES or moves[-1] + 1 >= len(looks) - 1:
            continue
        begin = moves[-1] + 1
        # Where an update was left out, as by a GradScaler, nothing moves.
        if not changed_LP[begin:].any(axis=1).all():
            continue
        since_S = (steps_S >= steps_L[begin]) & (norms_SP[:, p] > 0) & (rates_S > 0)
        before_S = (steps_S < steps_L[begin]) & (norms_SP[:, p] > 0) & (rates_S > 0)
        if not before_S.any():
            continue
        sizes_S = rates_S * norms_SP[:, p]
        # What is smaller may be lost to rounding.
        large_S = since_S & (sizes_S >= np.quantile(sizes_S[before_S], SHARE))
        if large_S.sum() >= FEWEST_LARGE and since_S.sum() >= FEWEST:
            still[name] = (int(steps_S[since_S][0]), int(since_S.sum()), int(steps_S[since_S][-1]))
    return still


def zero_since(run: Run) -> list[ZeroSince]:
    """Parameters whose gradient is there, and exactly zero, from a step on to the end. Raises ``CannotTell`` where no
    update was sampled.
    """
    params = [env.params for env in run.env.values()]
    rows = run.lists("param_grad_norms")
    if not rows or any(env.lists for env in run.env.values()) or any(names != params[0] for names in params):
        return []
    if {rank for _, rank in rows} != set(run.ranks) or any(len(row) != len(params[0]) for row in rows.values()):
        return []
    by_step: defaultdict[int, list[_Floats]] = defaultdict(list)
    for (step, _), row in sorted(rows.items()):
        by_step[step].append(row)
    steps = list(by_step)
    # of all ranks; -1 where there is none, and NaN is no zero
    zero_SP = np.stack([np.all(np.stack(by_step[step]) == 0, axis=0) for step in steps])
    some_SP = np.stack([np.any(~(np.stack(by_step[step]) <= 0), axis=0) for step in steps])
    losses_TN, measured_TN = run.pivot("loss")
    without_loss = {int(step) for step in run.steps[(measured_TN & (losses_TN == 0)).any(axis=1)]}
    names_from: defaultdict[int, list[str]] = defaultdict(list)
    for p, name in enumerate(params[0]):
        nonzero = np.flatnonzero(~zero_SP[:, p])
        start = int(nonzero[-1]) + 1 if len(nonzero) else 0
        if some_SP[:start, p].sum() >= FEWEST_MOVES and len(steps) - start >= FEWEST:
            names_from[start].append(name)
    return [
        _zero_since(run, steps[start:], names)
        for start, names in names_from.items()
        if not _has(without_loss, steps[start:])
    ]


def _has(without_loss: set[int], steps: Sequence[int]) -> bool:
    """A loss of 0 has no gradient: all has been learned."""
    return not without_loss.isdisjoint(steps)


def _zero_since(run: Run, steps: Sequence[int], names: Sequence[str]) -> ZeroSince:
    values: defaultdict[str, list[bool]] = defaultdict(list)
    for sample in sampled_updates(run).slices:
        if sample.step >= steps[0] and sample.is_own:
            values[sample.name].append(bool(sample.before[PARAM].any()))
    return ZeroSince(
        names,
        tuple(run.ranks),
        steps[0],
        steps[-1],
        len(steps),
        [name for name in names if values[name] and not any(values[name])],
        len(names) == len(run.env[min(run.env)].params),
    )
