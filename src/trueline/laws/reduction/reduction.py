"""Columns of the workers table on each reduction: what went in, what came out, what the optimizer received.

Letters: T steps, N workers, G parameter groups, P parameters. NaN is not measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from trueline.judge.compared_ranks import Bools, Floats, Ints, any_over, columns_of, numbers, several_workers
from trueline.judge.series.whole_parameters import EQUAL, unshared_params
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
    _columns: dict[str, Floats] = field(default_factory=dict[str, Floats], repr=False, compare=False)

    def groups(self, column: str) -> Floats:
        """[T, N, G] of a column with one number a group; all NaN where the Run has none."""
        return self._stack(column, len(self.env.groups))

    def params(self, column: str) -> Floats:
        """[T, N, P] of a column with one number a parameter; all NaN where the Run has none."""
        return self._stack(column, len(self.env.params))

    @cached_property
    def used_apart(self) -> Bools:
        """[T, G] groups of which the optimizers of replicas received different gradients, beyond rounding."""
        with np.errstate(invalid="ignore"):
            beyond_floor = np.any(self.groups("group_used_residual") > self.groups("group_used_floor"), axis=1)
        return beyond_floor & ~self.in_groups(self.own_P[None])

    @cached_property
    def backward_TN(self) -> Bools:
        """[T, N] steps at which the worker computed a gradient."""
        return any_over(~np.isnan(self.params("param_grad_norms")), 2)

    @cached_property
    def used_TN(self) -> Bools:
        """[T, N] steps at which the worker's optimizer received any gradient."""
        return any_over(self.params("used_param_norms") >= 0, 2)

    @cached_property
    def not_reduced_params(self) -> Bools:
        """[T, P] parameters whose gradients the optimizers received as each worker had made them.

        Their norms differ between workers, and on every worker that has one it is the norm before any reduction, or
        there was none to be seen before reduction. Both to the rounding of a norm, ``group_used_floor``.
        """
        local_norm, used_norm = self.params("param_grad_norms"), self.params("used_param_norms")
        floor_T11 = self._floor_T11
        present = used_norm > 0
        low = np.min(np.where(present, used_norm, np.inf), axis=1)
        high = np.max(np.where(present, used_norm, -np.inf), axis=1)
        with np.errstate(invalid="ignore"):
            spread = high - low > floor_T11[:, 0] * high
            # a gradient that no hook saw before reduction has no norm to compare, and may be local all the same
            is_local = (np.abs(used_norm - local_norm) <= floor_T11 * used_norm) | (local_norm == ABSENT)
        on_several_workers = np.count_nonzero(present, axis=1) > 1
        return spread & on_several_workers & np.all(is_local | ~present, axis=1) & ~self.own_P

    @cached_property
    def disagreeing_params(self) -> Bools:
        """[T, P] parameters whose gradients, as the optimizers received them, have different norms on different
        workers.
        """
        norm = self.params("used_param_norms")
        measured = ~np.isnan(norm)
        low, high = (
            extreme(np.where(measured, norm, fill), axis=1) for extreme, fill in ((np.min, np.inf), (np.max, -np.inf))
        )
        return high - low > self._floor_T11[:, 0] * np.maximum(high, 0)

    @cached_property
    def not_reduced(self) -> Bools:
        """[T, G] groups of which every worker's optimizer received its own gradient, or that of parameters in it."""
        local, floor = self.groups("group_used_local"), self.groups("group_used_floor")
        with np.errstate(invalid="ignore"):
            is_local = np.all(np.isnan(local) | (local <= floor) | (self.groups("group_seen") == 0), axis=1)
        measured = np.any(~np.isnan(local), axis=1)
        partly = self.in_groups(self.not_reduced_params)
        replicated = self.in_groups(self.not_reduced_params & self.replicated_P)
        # sketches of sharded groups differ between ranks by nature, so the norms of whole parameters are enough
        return (self.used_apart & ((is_local & measured) | partly)) | replicated

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
        return np.isin(np.array(self.env.params, dtype=str), sorted(unshared_params(self.run)))

    def in_groups(self, mask_TP: Bools) -> Bools:
        """[T, G] groups in which the mask is set for a parameter."""
        mask_TG = np.zeros((len(mask_TP), len(self.env.groups)), dtype=np.bool_)
        np.logical_or.at(mask_TG.T, self.group_of_param, mask_TP.T)
        return mask_TG

    @cached_property
    def group_of_param(self) -> Ints:
        """[P] index of the group of each parameter."""
        group_of = {name: index for index, group in enumerate(self.env.groups) for name in group.params}
        return np.array([group_of.get(name, 0) for name in self.env.params], dtype=np.int64)

    def param_names(self, mask_P: Bools, group: int) -> list[str]:
        """Names of the parameters of one group for which the mask is set."""
        positions = np.flatnonzero(mask_P & (self.group_of_param == group))
        return [self.env.params[position] for position in positions]

    @cached_property
    def by_hand(self) -> bool:
        """True where the script averages gradients itself: no framework's reduction was seen."""
        return self.run.manifest.adapter == "manual"

    @cached_property
    def envs(self) -> list[RankEnv]:
        """Environments of the ranks that left one."""
        return [self.run.env[rank] for rank in self.ranks if rank in self.run.env]

    def numbers(self, column: str) -> tuple[Floats, Bools]:
        """[T, N] of a column with one number a step and rank, and where it was measured."""
        rows = np.searchsorted(self.run.steps, self.steps)
        values_TN, measured_TN = numbers(self.run, column, self.ranks)
        return values_TN[rows], measured_TN[rows]

    @cached_property
    def num_micro_TN(self) -> Floats:
        """[T, N] micro-batches of the step, 1 where they were not counted."""
        return np.nan_to_num(self.numbers("num_micro")[0], nan=1.0)

    @cached_property
    def common_floor(self) -> Floats:
        """[T, N, G] how far rounding can take the received gradient from the mean."""
        return np.fmax(self.groups("group_used_floor"), self.groups("group_reduce_floor"))

    @cached_property
    def used_factor(self) -> Floats:
        """[T, N, G] factor of the gradient that the optimizer received, against the mean."""
        return self.groups(f"{self._used_prefix}_factor")

    @cached_property
    def used_shape_residual(self) -> Floats:
        """[T, N, G] difference of the received gradient from the mean that is left without ``used_factor``."""
        return self.groups(f"{self._used_prefix}_shape_residual")

    @property
    def _used_prefix(self) -> str:
        # by hand there is no reduced gradient in between: the optimizer's is compared with the mean itself
        return "group_reduce" if self.by_hand else "group_used"

    @cached_property
    def residual(self) -> Floats:
        """[T, N, G] how far the reduced gradient is from the mean of the workers' gradients.

        Where only the optimizer's gradient was sketched: the part of it that no factor explains, provided that it was
        the reduced gradient times a factor at every step that shows both.
        """
        residual, shape_residual = self.groups("group_reduce_residual"), self.groups("group_reduce_shape_residual")
        changed = self.groups("group_used_shape_residual")
        in_both = ~np.isnan(residual) & ~np.isnan(changed)
        only_scaled = bool(in_both.any()) and not np.any(in_both & (changed > self.common_floor))
        return np.where(np.isnan(residual) & only_scaled, shape_residual, residual)

    @cached_property
    def beyond_floor(self) -> Bools:
        """[T, N, G] cells in which the gradient was reduced, and the result is not the mean."""
        return (self.residual > self.groups("group_reduce_floor")) & ~self.not_reduced[:, None, :]

    @cached_property
    def replicas_agree(self) -> Bools:
        """[T, 1, G] groups of which replicas received one gradient, whose reduction gave the mean or was not seen."""
        agree = ~self.used_apart & ~self.not_reduced
        if not self.by_hand:
            agree &= ~any_over(self.beyond_floor, 1)
        return agree[:, None, :]

    def slack(self, divisor: int) -> Floats:
        """[T, N, G] how far rounding can move ``divisor`` times ``used_factor`` from 1.

        The floor is relative to the mean norm s of the workers' gradients, the factor to the norm of their mean m. For
        a factor c, residual^2 - shape^2 = ((c - 1) |m| / s)^2 gives |m| / s. What the optimizer received after a
        framework's reduction is relative to its own norm already.
        """
        if not self.by_hand:
            return self.common_floor
        squares = self.groups("group_reduce_residual") ** 2 - self.used_shape_residual**2
        ratio = np.sqrt(np.maximum(squares, 0)) / np.abs(self.used_factor - 1)
        return np.where(ratio > 0, divisor * self.common_floor / ratio, self.common_floor)

    @property
    def in_shards(self) -> bool:
        """True where each rank's optimizer received another shard of one gradient."""
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
        if column not in self._columns:
            self._columns[column] = self._from_run(column, width)
        return self._columns[column]

    def _from_run(self, column: str, width: int) -> Floats:
        try:
            values, measured = self.run.stack(column, steps=self.steps.tolist())
        except RunError as error:
            raise CannotTell(
                "ranks have different parameter groups, which cannot be compared", reason="undecidable"
            ) from error
        positions = columns_of(self.run, self.ranks)
        if not measured.any() or values.shape[2] != width:
            return np.full((len(self.steps), len(self.ranks), width), np.nan)
        return values if len(positions) == values.shape[1] else values[:, positions]  # NaN where not measured


def read_reductions(run: Run, *columns: str) -> Reductions:
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


def masked_steps(reductions: Reductions, mask_T: Bools) -> Sequence[int]:
    """Steps for which the mask is set."""
    return reductions.steps[mask_T].tolist()
