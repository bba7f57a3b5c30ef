"""Gradients that optimizers received other than as the mean: different on replicas, scaled, another rank's, misplaced.

Letters: T steps, N workers, G parameter groups, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trueline.judge.compared_ranks import Bools, Floats, any_over
from trueline.judge.series.whole_parameters import EQUAL
from trueline.laws.reduction.backward_passes import extra_passes
from trueline.laws.reduction.mismatch import NEAR, Details, Mismatch, factor_kinds, lasting_rows, rows_in_a_row
from trueline.laws.reduction.reduction import Reductions
from trueline.laws.reduction.result_mismatches import returned_the_mean
from trueline.laws.reduction.used_gradients import clipped_by_own_norms, explain_uses
from trueline.laws.token_weights.token_weighting import weighed_steps
from trueline.schema.errors import CannotTell, RunError
from trueline.schema.finding import Severity
from trueline.schema.text.words import counted
from trueline.store.reader import Run


@dataclass(frozen=True)
class ReplicasApart(Mismatch):
    """Replicas received different gradients, though they were reduced, and rightly so."""

    kind: ClassVar = "replicas-apart"
    claim: ClassVar = "reached the optimizers of the replicas in different versions"
    unit: ClassVar = "difference between replicas over the norm of the gradient"

    def details(self, reductions: Reductions, rows: Sequence[int], factor: float) -> Details:
        """Cause of the difference, as far as one is seen: what optimizers made of the mean, and extra passes."""
        uses = explain_uses(reductions, rows)
        kinds = [uses.use]
        if uses.use == "other" and returned_the_mean(reductions, rows):
            kinds.append("after-the-mean")
        passes = extra_passes(reductions, rows)
        if passes is None:
            return Details(uses.clause, tuple(kinds), factors=uses.factors)
        return Details(
            uses.clause + passes.sentence,
            (*kinds, "extra-pass"),
            factors=uses.factors,
            ranks=passes.ranks,
            advice=(passes.ADVICE,),
        )


@dataclass(frozen=True)
class WholeParametersApart(ReplicasApart):
    """Replicas received different gradients of a parameter that all hold whole, next to shards."""

    unit: ClassVar = "difference from the other replicas' norm, over it"


@dataclass(frozen=True)
class DividedAgain(Mismatch):
    """Every optimizer received the mean divided by the number of workers once or twice more."""

    kind: ClassVar = "divided-again"
    claim: ClassVar = "reached the optimizer divided by the number of workers again"
    unit: ClassVar = "times the mean of the workers' gradients"


@dataclass(frozen=True)
class Multiplied(Mismatch):
    """Every optimizer received the mean times a number that the number of ranks makes."""

    severity: Severity = "warning"
    kind: ClassVar = "multiplied"
    claim: ClassVar = "reached the optimizer as a multiple of the mean"
    unit: ClassVar = "times the mean of the workers' gradients"

    def details(self, reductions: Reductions, rows: Sequence[int], factor: float) -> Details:
        num_ranks = len(reductions.ranks)
        sentence = (
            f" It is {factor:.4g} times the mean over {counted(num_ranks, 'rank')}, which is right only "
            "where each rank's loss was divided by as much."
        )
        return Details(sentence, factor_kinds(factor, num_ranks))


@dataclass(frozen=True)
class OneRanksOwn(Mismatch):
    """All optimizers received the gradient that one rank alone had computed."""

    kind: ClassVar = "one-ranks"
    claim: ClassVar = "is one rank's own, and those of the other ranks count nothing,"
    unit: ClassVar = "|used - mean| over the mean norm of the workers' gradients"


@dataclass(frozen=True)
class Misplaced(Mismatch):
    """All optimizers received the elements of the mean at other places."""

    severity: Severity = "warning"
    kind: ClassVar = "misplaced"
    claim: ClassVar = "has the length of the mean of the workers' gradients and nothing of its direction"
    unit: ClassVar = "sine of the angle to the mean"


@dataclass(frozen=True)
class ShardsScaledApart(Mismatch):
    """Shards of one gradient were multiplied by different factors after the reduction."""

    kind: ClassVar = "scaled-apart"
    claim: ClassVar = "was multiplied after the reduction by another factor than on the other ranks"
    unit: ClassVar = "times the mean"

    def details(self, reductions: Reductions, rows: Sequence[int], factor: float) -> Details:
        """Clipping by each rank's own norm, where factors are as it makes them."""
        if not clipped_by_own_norms(self.measured[rows]):
            return Details()
        sentence = (
            " No factor is above 1, and they change from step to step: each rank clips by the norm of its own shard."
        )
        return Details(sentence, ("clipped-by-own-norm",))

    def is_one_finding(self, rank_sets: Collection[tuple[int, ...]], num_workers: int) -> bool:
        """True also where all ranks are odd at some step."""
        # at steps without a majority all ranks are odd, and the smaller sets are parts of that
        return super().is_one_finding(rank_sets, num_workers) or tuple(range(num_workers)) in rank_sets


def find_replicas_apart(reductions: Reductions) -> Mismatch:
    """Cells in which replicas received different gradients of what was reduced rightly."""
    residual, floor = reductions.groups("group_used_residual"), reductions.groups("group_used_floor")
    apart_TG = reductions.used_apart & ~reductions.not_reduced
    if not reductions.by_hand:
        apart_TG &= ~reductions.beyond_floor.any(axis=1)
    # an optimizer without any gradient leaves no sketch: its residual is NaN, and it differs entirely
    dropped_TN1 = (np.isnan(residual).all(axis=2) & reductions.backward_TN & ~reductions.used_TN)[:, :, None]
    cells = apart_TG[:, None, :] & (~np.isnan(residual) | dropped_TN1)
    unchanged = np.abs(reductions.used_factor - 1) <= reductions.slack(1)
    unchanged &= reductions.used_shape_residual <= reductions.common_floor
    changed = cells & ~unchanged
    can_blame = changed.any(axis=1, keepdims=True) & (cells & ~changed).any(axis=1, keepdims=True)
    return ReplicasApart(
        np.where(can_blame, changed, cells),
        np.where(dropped_TN1, 1.0, residual),
        np.where(dropped_TN1, 0.0, floor),
    )


def find_divided_again(reductions: Reductions) -> Mismatch:
    """Cells in which every optimizer received the mean over N or N^2, in all groups, at several steps in a row."""
    factor, num_ranks = reductions.used_factor, len(reductions.ranks)
    cells = np.zeros(factor.shape, dtype=bool)
    for divisor in (num_ranks, num_ranks**2):
        equal = np.abs(factor * divisor - 1) <= reductions.slack(divisor)
        equal &= reductions.used_shape_residual <= reductions.common_floor
        differs = ~equal & ~np.isnan(factor) & (factor != 0)
        # a script that divides by its micro-batches after backward means to
        is_micro_T = np.any(reductions.num_micro_TN == divisor, axis=1)
        everywhere_T = equal.any(axis=(1, 2)) & ~differs.any(axis=(1, 2)) & ~is_micro_T
        cells |= equal & rows_in_a_row(everywhere_T)[:, None, None]
    cells &= not any(env.in_float16 for env in reductions.envs)
    return DividedAgain(cells, factor, np.ones_like(factor))


def find_one_ranks_own(reductions: Reductions) -> Mismatch:
    """Cells in which all optimizers received what one rank alone had computed, which is no multiple of the mean."""
    shape_residual, floor = reductions.used_shape_residual, reductions.common_floor
    local = reductions.groups("group_used_local")
    of_one = np.count_nonzero(local <= floor, axis=1, keepdims=True) == 1
    not_of_rest = np.count_nonzero(local > floor, axis=1, keepdims=True) == len(reductions.ranks) - 1
    cells = of_one & not_of_rest & reductions.replicas_agree & np.all(shape_residual > floor, axis=1, keepdims=True)
    return OneRanksOwn(np.broadcast_to(cells, shape_residual.shape), reductions.groups("group_reduce_residual"), floor)


def find_misplaced(reductions: Reductions) -> Mismatch:
    """Steps at which what all optimizers received by hand is at right angles to the mean in every group, and as long as
    it is in all. Angles and lengths as far as a sketch of k numbers tells them: eight times 1 / sqrt(k), and eight
    times sqrt(4 / k).
    """
    factor, shape_residual = reductions.used_factor, reductions.used_shape_residual
    sine, residual = reductions.groups("group_used_shape_residual"), reductions.groups("group_reduce_residual")
    k = max(reductions.env.sketch_length, 1)
    # residuals are relative to the mean norm of the workers' gradients, so lengths of groups need it back to add up
    scale2 = np.mean(reductions.groups("group_grad_norms"), axis=1, keepdims=True) ** 2
    used2 = np.sum(scale2 * (shape_residual / sine) ** 2, axis=2, keepdims=True)
    mean_terms = scale2 * np.maximum(residual**2 - shape_residual**2, 0) / (factor - 1) ** 2
    mean2 = np.sum(mean_terms, axis=2, keepdims=True)
    as_long = np.abs(np.log(used2 / mean2)) <= 8 * math.sqrt(4 / k)
    orthogonal = np.all(sine**2 >= 1 - 64 / k, axis=2, keepdims=True)
    orthogonal &= np.all(shape_residual > reductions.common_floor, axis=2, keepdims=True)
    usable = reductions.by_hand and len(reductions.env.groups) > 1 and k > 64
    everywhere_T = np.all(orthogonal & as_long, axis=(1, 2)) & np.all(reductions.replicas_agree, axis=(1, 2))
    cells = np.broadcast_to((usable & lasting_rows(everywhere_T))[:, None, None], shape_residual.shape)
    return Misplaced(cells, sine, np.zeros_like(sine))


def find_multiplied(reductions: Reductions) -> Mismatch:
    """Cells in which every optimizer received the mean, in all groups, times a number that the number of ranks makes:
    of a framework that averages N, or N over a divisor of it, as a node has. By hand N is a sum, and may be meant.
    """
    factor, by_hand, num_ranks = reductions.used_factor, reductions.by_hand, len(reductions.ranks)
    micro_TN = reductions.num_micro_TN
    cells = np.zeros(factor.shape, dtype=bool)
    divisors = [part for part in range(1, num_ranks) if num_ranks % part == 0 and (part > 1 or not by_hand)]
    for multiple in [num_ranks // divisor for divisor in divisors]:
        equal = np.abs(factor / multiple - 1) <= np.minimum(reductions.slack(1), NEAR)
        equal &= reductions.used_shape_residual <= reductions.common_floor
        summed_T = np.any(micro_TN == multiple, axis=1) | (by_hand & np.any(micro_TN * multiple == num_ranks, axis=1))
        everywhere_T = np.all(equal | np.isnan(factor), axis=(1, 2)) & np.any(equal, axis=(1, 2)) & ~summed_T
        cells |= equal & lasting_rows(everywhere_T)[:, None, None]
    cells &= not any(env.in_float16 for env in reductions.envs)
    # reading the weights of tokens takes long, so only where it decides
    cells &= not (cells.any() and _token_weights_known(reductions.run))
    return Multiplied(cells, factor, np.ones_like(factor))


def _token_weights_known(run: Run) -> bool:
    """True where the weights of tokens in the losses are known: `loss-scale-wrong` then judges their sum."""
    try:
        return bool(weighed_steps(run))
    except (CannotTell, RunError):
        return False


def find_shards_scaled_apart(reductions: Reductions) -> list[Mismatch]:
    """Cells in which shards of one gradient were multiplied by different factors before the optimizers received them.

    What is not the shard times a factor says nothing: clipping by value changes each shard in its own way. One group of
    several is less certain than all of a rank's: a mask of rows may be all that its shard holds of it.
    """
    factor, shape_residual, floor = reductions.used_factor, reductions.used_shape_residual, reductions.common_floor
    measured = ~np.isnan(factor)
    only_scaled = (shape_residual <= floor) | ((factor == 0) & np.isnan(shape_residual))
    comparable = measured & np.all(only_scaled | ~measured, axis=1, keepdims=True)
    usual_factor, odd = _compare_with_majority(np.where(comparable, factor, np.nan), floor)
    in_all_groups = ~any_over(comparable & ~odd, 2)[:, :, None]
    has_groups: Bools = np.sum(comparable, axis=2, keepdims=True) > 1
    certain: Bools = in_all_groups & ((factor != 0) | has_groups)
    return [
        ShardsScaledApart(odd & certain, factor, usual_factor),
        ShardsScaledApart(odd & ~in_all_groups & (factor != 0), factor, usual_factor, severity="warning"),
    ]


def find_whole_parameters_apart(reductions: Reductions) -> Mismatch:
    """Cells in which optimizers received different gradients of a parameter that all hold whole, next to shards."""
    apart_TP = reductions.disagreeing_params & reductions.replicated_P & ~reductions.not_reduced_params
    norms = np.where(apart_TP[:, None, :], reductions.params("used_param_norms"), np.nan)
    usual_norm, odd = _compare_with_majority(norms, np.full(norms.shape, EQUAL))
    cells = np.stack([reductions.in_groups(odd[:, n]) for n in range(odd.shape[1])], axis=1)
    spread = np.nanmax(np.where(odd, np.abs(norms / usual_norm - 1), 0.0), axis=2, initial=0.0)
    return WholeParametersApart(cells, np.repeat(spread[:, :, None], cells.shape[2], axis=2), np.zeros(cells.shape))


def _compare_with_majority(values_TNX: Floats, slack_TNX: Floats) -> tuple[Floats, Bools]:
    """[T, N, X] the value of most ranks, and the ranks that have another, beyond ``slack_TNX`` of it. Where no value
    has more than half of the ranks it is 1, if some have that, else the median, and all others are odd.
    """
    measured = ~np.isnan(values_TNX)
    # a column of NaN alone would make nanmedian warn
    filled = np.where(np.any(measured, axis=1, keepdims=True), values_TNX, 0.0)
    median = np.broadcast_to(np.nanmedian(filled, axis=1, keepdims=True), values_TNX.shape)
    is_one = np.abs(values_TNX - 1) <= slack_TNX
    near = np.abs(values_TNX - median) <= slack_TNX * (np.abs(values_TNX) + np.abs(median))
    has_majority = 2 * np.count_nonzero(near, axis=1, keepdims=True) > np.count_nonzero(measured, axis=1, keepdims=True)
    usual = np.where(~has_majority & np.any(is_one, axis=1, keepdims=True), 1.0, median)
    return usual, measured & ~np.where(has_majority, near, is_one)
