"""The series of a whole run, all its workers together, as arrays: what is judged along time.

T steps, N workers, G parameter groups, P parameters. NaN is not measured, not finite, or not to be judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trueline.judge.compared_ranks import Bools, Floats, Ints, columns_of, data_parallel_ranks, numbers
from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.judge.stats.memoize import memoized
from trueline.judge.stats.peaks_over_threshold import LEVEL_STEPS, Spike
from trueline.judge.stats.tails import probability
from trueline.schema.errors import CannotTell, RunError
from trueline.store.reader import Run

RISE = 1.25
"""A learning rate that is more than so many times that of the step before is a jump that the schedule asks for."""

FEW_TOKENS = 0.5
"""A step with less than this fraction of the median number of tokens (the last batch of an epoch) is not judged."""

MICRO_STEPS = 17
"""Steps around one of which most say what the usual number of micro-batches is; a step with another is not judged."""

SHARES = {"loss": 1 / 2, "norm": 1 / 4, "groups": 1 / 8, "params": 1 / 16, "falls": 1 / 32, "zeros": 1 / 32}
"""Fraction of the budget of jumps that each kind of series may use up. Jumps have a budget of their own, as large
as that of the checks that compare workers (``stats.alarm_budget``): ``Plan.false_alarms`` expected in 10,000 steps."""

MAX_PARAM_VALUES = 16_000_000
"""Norms of parameters that are judged at most, over all steps: of a longer Run, those of its last steps."""

_READ_AT_ONCE = 4_000_000
"""Norms of parameters of all workers that are read at once."""


NO_LOSS = 1e-3
"""Times the usual loss: at chance a loss of either sign is so near to zero at one step in a thousand."""

USUAL_STEPS = 160
"""Steps before, whose median loss (without its sign) is the usual one."""


def _absent() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class WholeRun:
    """The workers' mean loss, and the norms of their mean gradient, at T steps.

    ``starts`` are indices of steps where a healthy run may jump: the learning rate rises at once, or the number of
    micro-batches changes for longer than some steps. ``of_mean`` says that norms are of the mean gradient; otherwise
    they are the root mean square of the workers' own.
    """

    steps: Ints
    """[T]"""
    ranks: tuple[int, ...]
    """N global ranks."""
    loss: Floats
    """[T]"""
    norm: Floats = field(default_factory=_absent)
    """[T]"""
    group_names: tuple[str, ...] = ()
    group_norm: Floats = field(default_factory=_absent)
    """[T, G]"""
    starts: tuple[int, ...] = ()
    of_mean: bool = True


@memoized
def whole_run(run: Run) -> WholeRun:
    """The series of a Run; raises ``CannotTell`` where no worker left data."""
    ranks = data_parallel_ranks(run)
    if not ranks:
        raise CannotTell("no worker of the data-parallel group left data")
    groups = _group_names(run, ranks)
    norm_T, of_mean = _mean_norm(run, ranks)
    group_TG = _groups(run, ranks, "group_reduced_norms" if of_mean else "group_grad_norms", len(groups))
    micro_T = _num_micros(run, ranks)
    usual_T = _usual_micros(micro_T)
    # Another number of micro-batches, or of tokens, is another noise: such a step is compared with none.
    judged_T = _full_steps(run, ranks) & ((micro_T == usual_T) | (micro_T == 0))
    return WholeRun(
        steps=run.steps.astype(np.int64),
        ranks=tuple(ranks),
        loss=np.where(judged_T, _mean_of_workers(numbers(run, "loss", ranks)[0]), np.nan),
        norm=np.where(judged_T, norm_T, np.nan),
        group_names=groups,
        group_norm=np.where(judged_T[:, None], group_TG, np.nan),
        starts=_starts(run, ranks, usual_T),
        of_mean=of_mean,
    )


@dataclass(frozen=True, eq=False)
class ParamNorms:
    """P parameters, in the order in which the model has them, the group of each ("" for none), and their squared norms
    [S, P] at S steps, whose places in ``WholeRun.steps`` are ``indices``: the mean over workers of their own gradients,
    NaN where none was seen.
    """

    names: tuple[str, ...]
    groups: tuple[str, ...]
    indices: Ints
    squared: Floats

    def logs(self, series: WholeRun) -> Floats:
        """[S, P] natural logs of the norms; NaN for what is not positive and finite, or at a step not to be judged."""
        return np.where(np.isfinite(series.norm[self.indices])[:, None], logs(self.squared) / 2, np.nan)

    def starts(self, series: WholeRun) -> list[int]:
        """``WholeRun.starts`` as indices of the S steps."""
        return np.searchsorted(self.indices, series.starts).tolist()

    def in_run_steps(self, spike: Spike) -> Spike:
        """A jump of ``logs`` with indices of ``WholeRun.steps``."""
        first, peak, last = (int(self.indices[index]) for index in (spike.first, spike.peak, spike.last))
        return replace(spike, first=first, peak=peak, last=last)

    def row_of(self, index: int) -> int | None:
        """The row among the S steps of the step ``index`` of ``WholeRun.steps``; None where it is none of them."""
        row = int(np.searchsorted(self.indices, index))
        return row if row < len(self.indices) and self.indices[row] == index else None

    def rise(self, row: int) -> Floats:
        """[P] nats by which norms are above their level at the step ``row`` of the S; 0 where that is unknown."""
        log_SP = logs(self.squared[max(row - LEVEL_STEPS, 0) : row + 1]) / 2
        return np.nan_to_num(log_SP[-1] - np.median(log_SP[:-1], axis=0))

    def backward_order(self, params: Sequence[int]) -> tuple[str, ...]:
        """The names of these parameters, those of the last module first: where backward begins."""
        modules = [name.rpartition(".")[0] for name in self.names]
        # Reversed, so that the first of a module's parameters is what stays.
        first_position = {module: position for position, module in reversed(list(enumerate(modules)))}
        return tuple(self.names[p] for p in sorted(params, key=lambda p: (-first_position[modules[p]], p)))


@memoized
def param_norms(run: Run) -> ParamNorms:
    """The norms of parameters of a Run at the steps that have any, at most ``MAX_PARAM_VALUES`` of them; none where the
    workers' parameters differ.
    """
    ranks = data_parallel_ranks(run)
    names = {tuple(run.env[rank].params) for rank in ranks if rank in run.env}
    params = names.pop() if len(names) == 1 else ()
    group_of = {
        name: group.name
        for rank in ranks[:1]
        if rank in run.env
        for group in run.env[rank].groups
        for name in group.params
    }
    measured_T = run.measured("param_grad_norms")[:, columns_of(run, ranks)].all(axis=1) if params else np.zeros(0)
    # The last ones, for a jump that is going on is worth most.
    indices = np.flatnonzero(measured_T)[-max(MAX_PARAM_VALUES // max(len(params), 1), 1) :]
    squared = np.full((len(indices), len(params)), np.nan)
    num_at_once = max(_READ_AT_ONCE // max(len(params) * len(ranks), 1), 1)
    for begin in range(0, len(indices), num_at_once):
        steps = run.steps[indices[begin : begin + num_at_once]].tolist()
        values_SNP = _stack_column(run, ranks, "param_grad_norms", len(params), steps=steps)
        squared_SNP = np.square(np.where(values_SNP >= 0, values_SNP, np.nan))
        squared[begin : begin + num_at_once] = squared_SNP.mean(axis=1)
    return ParamNorms(params, tuple(group_of.get(name, "") for name in params), indices.astype(np.int64), squared)


def log_level(budget: AlarmBudget, kind: str, *, among: int = 1) -> float:
    """Natural log of the probability per step at which one of ``among`` series of a kind is reported."""
    return float(np.log(budget.false_alarms / 10_000 * SHARES[kind] / max(among, 1)))


def false_alarm_rate(log_p: float, kind: str, *, among: int, num_steps: int) -> float:
    """Bound on the probability that ``num_steps`` healthy steps of the run show any series of the family as far beyond
    its share.
    """
    return probability(log_p + math.log(max(num_steps, 1) * max(among, 1) / SHARES[kind]))


def logs(values: Floats) -> Floats:
    """Natural logs; NaN for what is not positive and finite."""
    positive = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    return np.log(positive)


def has_loss(loss_T: Floats) -> Bools:
    """[T] mask of the steps whose loss is not next to nothing beside the usual one; steps without a loss are in it."""
    size_T = np.abs(loss_T)
    before_TW = np.lib.stride_tricks.sliding_window_view(np.r_[np.full(USUAL_STEPS, np.nan), size_T], USUAL_STEPS)[:-1]
    has_past_T = np.isfinite(before_TW).any(axis=1)
    usual_T = np.zeros(len(size_T))
    usual_T[has_past_T] = np.nanmedian(before_TW[has_past_T], axis=1)
    return ~(size_T <= NO_LOSS * usual_T)  # negated, so that a step without a loss is in


def _mean_of_workers(values_TN: Floats) -> Floats:
    """[T] mean over workers; NaN where any that left a row has none that is finite, or none left a row."""
    return np.where(np.isfinite(values_TN).all(axis=1), values_TN.mean(axis=1), np.nan)


def _mean_norm(run: Run, ranks: list[int]) -> tuple[Floats, bool]:
    """[T] norm of the mean gradient, and True; where that was not measured, the root mean square of the workers'."""
    reduced_TN = numbers(run, "reduced_norm", ranks)[0]
    measured = np.isfinite(reduced_TN)
    local_TN = numbers(run, "grad_norm", ranks)[0]
    if measured.any(axis=1).sum() >= np.isfinite(local_TN).any(axis=1).sum() and measured.any():
        return _first_measured(reduced_TN), True
    return np.sqrt(_mean_of_workers(np.square(local_TN))), False


def _first_measured(values_TN: Floats) -> Floats:
    """[T, ...] the value of the first worker that has one: all have the same."""
    first = np.argmax(np.isfinite(values_TN), axis=1)
    return np.take_along_axis(values_TN, np.expand_dims(first, 1), axis=1)[:, 0]


def _group_names(run: Run, ranks: list[int]) -> tuple[str, ...]:
    names = {tuple(group.name for group in run.env[rank].groups) for rank in ranks if rank in run.env}
    return names.pop() if len(names) == 1 else ()


def _stack_column(run: Run, ranks: list[int], column: str, length: int, *, steps: list[int] | None = None) -> Floats:
    """[T, N, length] of a list column; NaN where not measured, all of it where lists have another length."""
    stacked = np.full((len(run.steps) if steps is None else len(steps), len(ranks), length), np.nan)
    try:
        values, measured = run.stack(column, steps=steps)
    except RunError:
        return stacked
    if length and measured.any() and values.shape[2] == length:
        columns = columns_of(run, ranks)
        stacked = np.where(measured[:, columns, None], values[:, columns], np.nan)
    return stacked


def _groups(run: Run, ranks: list[int], column: str, num: int) -> Floats:
    values_TNG = _stack_column(run, ranks, column, num)
    if column == "group_reduced_norms":
        return _first_measured(values_TNG) if num else values_TNG[:, 0]
    squares_TNG = np.square(np.where(values_TNG >= 0, values_TNG, np.nan))
    return np.sqrt(np.where(np.isfinite(squares_TNG).all(axis=1), squares_TNG.mean(axis=1), np.nan))


def _full_steps(run: Run, ranks: list[int]) -> Bools:
    """[T] mask of the steps with half of the median number of tokens or more, or an unknown number."""
    tokens_T = numbers(run, "tokens", ranks)[0].sum(axis=1)
    is_known = np.isfinite(tokens_T) & (tokens_T > 0)
    if not is_known.any():
        return np.ones(len(tokens_T), dtype=np.bool_)
    return ~is_known | (tokens_T >= FEW_TOKENS * float(np.median(tokens_T[is_known])))


def _num_micros(run: Run, ranks: list[int]) -> Floats:
    """[T] micro-batches of a worker, the mean over those that say; 0 where none does."""
    micro_TN = numbers(run, "num_micro", ranks)[0]
    known_TN = np.isfinite(micro_TN)
    return np.where(known_TN, micro_TN, 0.0).sum(axis=1) / np.maximum(known_TN.sum(axis=1), 1)


def _usual_micros(micro_T: Floats) -> Floats:
    """[T] the median over ``MICRO_STEPS`` steps around each.

    A step with another number is one of its own kind: the last window of an epoch is short, and an update that a
    gradient scaler leaves out makes one step of two batches.
    """
    half = MICRO_STEPS // 2
    if not len(micro_T):
        return micro_T
    padded = np.pad(micro_T, half, mode="edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1))


def _starts(run: Run, ranks: list[int], usual_T: Floats) -> tuple[int, ...]:
    """Indices of steps with a learning rate well above that of the step before, or from which on the number of
    micro-batches is another.
    """
    jumps_T = np.zeros(len(run.steps), dtype=np.bool_)
    jumps_T[1:] |= usual_T[1:] != usual_T[:-1]
    for rates_TG in _learning_rates(run, ranks):
        jumps_T[1:] |= (rates_TG[1:] > RISE * rates_TG[:-1]).any(axis=1)
    return tuple(np.flatnonzero(jumps_T).tolist())


def _learning_rates(run: Run, ranks: list[int]) -> list[Floats]:
    """[T, groups of the optimizer] learning rates of the first worker that left any, the last one known where a step
    has none.
    """
    for rank in ranks:
        try:
            rates_T1G, measured_T1 = run.stack("lr", ranks=[rank])
        except RunError:  # their number changes
            continue
        if measured_T1.any():
            # A row without rates has those of the last one that had some.
            last_T = np.maximum.accumulate(np.where(measured_T1[:, 0], np.arange(len(measured_T1)), -1))
            return [np.where(last_T[:, None] >= 0, rates_T1G[last_T, 0], np.nan)]
    return []
