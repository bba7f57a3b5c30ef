"""What the workers table holds about each reduction: what went in, what came out, what the optimizer received.

Letters: T steps, N workers, G parameter groups, P parameters. NaN is not measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from trueline.judge.compared_ranks import Bools, Floats, Ints, any_over, columns_of, several_workers
from trueline.judge.series.whole_parameters import EQUAL, held_by_one
from trueline.schema.errors import CannotTell, RunError
from trueline.schema.files.run_manifest import RankEnv
from trueline.store.reader import Run

ABSENT = -1.0
"""Stands in a list of norms for a gradient that was not there (``schema.workers``)."""


FLOOR_EXCEEDED = 2 * math.exp(-(8.0**2) / 2)
"""Probability at most with which rounding alone exceeds a recorded floor: roundings as independent errors stay below
lambda * sqrt(n) * u but for 2 exp(-lambda^2 / 2), and floors are recorded with lambda = 8 (Higham and Mary, SISC
41(5), 2019, theorem 2.4)."""


@dataclass(frozen=True)
class Reductions:
    """The sampled steps [T] of a Run, its workers [N], groups [G] and parameters [P]."""

    run: Run
    steps: Ints
    ranks: tuple[int, ...]
    env: RankEnv
    _read: dict[str, Floats] = field(default_factory=dict[str, Floats], repr=False, compare=False)

    def groups(self, column: str) -> Floats:
        """[T, N, G] of a column with one number a group; all NaN where the Run has none."""
        return self._stack(column, len(self.env.groups))

    def params(self, column: str) -> Floats:
        """[T, N, P] of a column with one number a parameter; all NaN where the Run has none."""
        return self._stack(column, len(self.env.params))

    @cached_property
    def used_apart(self) -> Bools:
        """[T, G] whether the optimizers of replicas received different gradients, beyond rounding."""
        with np.errstate(invalid="ignore"):
            apart = np.any(self.groups("group_used_residual") > self.groups("group_used_floor"), axis=1)
        return apart & ~self.in_groups(self.own_P[None])

    @cached_property
    def backward_TN(self) -> Bools:
        """[T, N] whether the worker computed a gradient."""
        return any_over(~np.isnan(self.params("param_grad_norms")), 2)

    @cached_property
    def used_TN(self) -> Bools:
        """[T, N] whether the worker's optimizer received any gradient."""
        return any_over(self.params("used_param_norms") >= 0, 2)

    @cached_property
    def not_reduced_params(self) -> Bools:
        """[T, P] parameters whose gradients the optimizers received as each worker had made them.

        Their norms differ between workers, and on every worker that has one it is the norm before any reduction, or
        there was none to be seen before reduction. Both to the rounding of a norm, ``group_used_floor``.
        """
        local, used = self.params("param_grad_norms"), self.params("used_param_norms")
        floor_T11 = self._floor_T11
        present = used > 0
        low = np.min(np.where(present, used, np.inf), axis=1)
        high = np.max(np.where(present, used, -np.inf), axis=1)
        with np.errstate(invalid="ignore"):
            spread = high - low > floor_T11[:, 0] * high
            own = (np.abs(used - local) <= floor_T11 * used) | (local == ABSENT)
        several = np.count_nonzero(present, axis=1) > 1
        return spread & several & np.all(own | ~present, axis=1) & ~self.own_P

    @cached_property
    def disagreeing_params(self) -> Bools:
        """[T, P] parameters whose gradients, as the optimizers received them, have different norms on different
        workers.
        """
        used = self.params("used_param_norms")
        known = ~np.isnan(used)
        low, high = (
            extreme(np.where(known, used, fill), axis=1) for extreme, fill in ((np.min, np.inf), (np.max, -np.inf))
        )
        return high - low > self._floor_T11[:, 0] * np.maximum(high, 0)

    @cached_property
    def not_reduced(self) -> Bools:
        """[T, G] whether every worker's optimizer received its own gradient of the group, or of parameters in it."""
        local, floor = self.groups("group_used_local"), self.groups("group_used_floor")
        with np.errstate(invalid="ignore"):
            own = np.all(np.isnan(local) | (local <= floor) | (self.groups("group_seen") == 0), axis=1)
        measured = np.any(~np.isnan(local), axis=1)
        part = self.in_groups(self.not_reduced_params)
        whole = self.in_groups(self.not_reduced_params & self.replicated_P)
        return (self.used_apart & ((own & measured) | part)) | whole

    @cached_property
    def replicated_P(self) -> Bools:
        """[P] parameters that ranks hold whole and equal while others are sharded: no sketch is of them alone, and
        their norms must do.
        """
        near_shards = self.in_groups(self.own_P[None])[0][self.group_of_param]
        return (np.isin(np.array(self.env.params, dtype=str), self.env.whole) | near_shards) & ~self.own_P

    @cached_property
    def own_P(self) -> Bools:
        """[P] parameters that are each rank's own, and no replicas."""
        return np.isin(np.array(self.env.params, dtype=str), sorted(held_by_one(self.run)))

    def in_groups(self, chosen_TP: Bools) -> Bools:
        """[T, G] groups in which a parameter is chosen."""
        part = np.zeros((len(chosen_TP), len(self.env.groups)), dtype=np.bool_)
        np.logical_or.at(part.T, self.group_of_param, chosen_TP.T)
        return part

    @cached_property
    def group_of_param(self) -> Ints:
        """[P] the group of each parameter."""
        group_of = {name: index for index, group in enumerate(self.env.groups) for name in group.params}
        return np.array([group_of.get(name, 0) for name in self.env.params], dtype=np.int64)

    def param_names(self, chosen_P: Bools, group: int) -> list[str]:
        """Names of the chosen parameters of one group."""
        inside = np.flatnonzero(chosen_P & (self.group_of_param == group))
        return [self.env.params[index] for index in inside]

    @property
    def in_shards(self) -> bool:
        """Whether the optimizers of the ranks received different shards of one gradient each."""
        return len({env.replica_key for env in self.run.env.values()}) > 1

    @property
    def false_alarm_rate(self) -> float:
        """Probability at most with which rounding alone exceeds any floor of the Run: one comparison a step, rank
        and group.
        """
        return min(1.0, len(self.steps) * len(self.ranks) * len(self.env.groups) * FLOOR_EXCEEDED)

    @cached_property
    def _floor_T11(self) -> Floats:
        floor = np.nan_to_num(self.groups("group_used_floor"), nan=0.0)
        return floor.max(axis=(1, 2), initial=EQUAL if self.env.whole else 0.0)[:, None, None]

    def _stack(self, column: str, width: int) -> Floats:
        if column not in self._read:
            self._read[column] = self._from_run(column, width)
        return self._read[column]

    def _from_run(self, column: str, width: int) -> Floats:
        try:
            values, measured = self.run.stack(column, steps=self.steps.tolist())
        except RunError as error:
            raise CannotTell(
                "ranks have different parameter groups, which cannot be compared", reason="undecidable"
            ) from error
        chosen = columns_of(self.run, self.ranks)
        if not measured.any() or values.shape[2] != width:
            return np.full((len(self.steps), len(self.ranks), width), np.nan)
        return values if len(chosen) == values.shape[1] else values[:, chosen]  # NaN where not measured


def reductions_of(run: Run, *columns: str) -> Reductions:
    """The reductions of steps at which one of ``columns`` was measured (or norms of what ranks hold whole next to
    shards); raises ``CannotTell`` where there is none.

    Steps at which a worker's gradient was not finite have no such columns: NaN minus NaN is NaN.
    """
    ranks = several_workers(run)
    if any(run.env[rank].whole for rank in ranks if rank in run.env):
        columns = (*columns, "used_param_norms")
    measured_TN = np.any([run.measured(column) for column in columns], axis=0)
    steps = run.steps[measured_TN[:, columns_of(run, ranks)].any(axis=1)].astype(np.int64)
    env = next((run.env[rank] for rank in ranks if rank in run.env), None)
    if not steps.size or env is None or not env.groups:
        if run.manifest.adapter in ("fsdp1", "fsdp2") and "group_reduce_residual" not in columns:
            raise CannotTell("it compares replicas, and FSDP cuts parameters into shards", reason="by-design")
        raise CannotTell("no step has both the gradients of the ranks before they were reduced and what came of them")
    return Reductions(run, steps, tuple(ranks), env)


def at_steps(reductions: Reductions, chosen_T: Bools) -> Sequence[int]:
    """The steps of a mask."""
    return reductions.steps[chosen_T].tolist()
