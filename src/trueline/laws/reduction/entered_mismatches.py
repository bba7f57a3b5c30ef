"""Gradients that ranks changed between backward and the reduction, as the others did not.

Letters: T steps, N workers, G parameter groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trueline.judge.compared_ranks import Bools, Floats, any_over
from trueline.judge.series.whole_parameters import EQUAL
from trueline.laws.reduction.mismatch import NEAR, Mismatch
from trueline.laws.reduction.reduction import Reductions


@dataclass(frozen=True)
class LostBefore(Mismatch):
    """Nothing of a rank's gradient entered the reduction."""

    kind: ClassVar = "lost-before"
    claim: ClassVar = "counted nothing in the reduction, though backward had left one,"
    unit: ClassVar = "times what backward had left"


@dataclass(frozen=True)
class ScaledBefore(Mismatch):
    """A rank's gradient entered the reduction times a factor of its own."""

    kind: ClassVar = "scaled-before"
    claim: ClassVar = "was multiplied between backward and the reduction, and that of other ranks was not,"
    unit: ClassVar = "times what backward had left"


@dataclass(frozen=True)
class ChangedBefore(Mismatch):
    """A rank's gradient entered the reduction changed other than by a factor."""

    kind: ClassVar = "changed-before"
    claim: ClassVar = "was changed between backward and the reduction, and that of other ranks was not,"
    unit: ClassVar = "|given - left by backward| over the norm of the latter"


def find_entered_mismatches(reductions: Reductions) -> list[Mismatch]:
    """Cells in which some ranks gave something else into a reduction than backward had left them, and half of all or
    more did not. Seen on its way, or by the result, which is the mean if one rank's gradient counts nothing.
    """
    num_ranks = len(reductions.ranks)
    floor = np.fmax(reductions.groups("group_reduce_floor"), EQUAL)
    factor, residual = reductions.groups("group_entered_factor"), reductions.groups("group_entered_residual")
    usual_factor, is_usual = _usual_factors(factor, residual, floor)
    num_usual = np.count_nonzero(is_usual, axis=1, keepdims=True)
    odd = ~np.isnan(residual) & ~is_usual & (2 * num_usual >= num_ranks)
    only_scaled = ~np.isnan(residual) & (residual <= floor)
    missing = odd & only_scaled & (np.abs(factor) <= floor)
    scaled = odd & only_scaled & (np.abs(factor) > floor)
    # where more than half of the ranks are scaled at some time, ranks weigh as they are meant to
    ever_scaled_N = np.any(only_scaled & ~is_usual, axis=(0, 2))
    relative_factor = factor / usual_factor
    scaled &= 2 * np.count_nonzero(ever_scaled_N) <= num_ranks
    scaled &= ~_is_token_share(reductions, relative_factor)
    missing |= _missing_from_mean(reductions, floor) & ~any_over(odd, 1)[:, None, :]
    no_change = np.ones_like(factor)
    return [
        LostBefore(missing, np.zeros_like(factor), no_change),
        ScaledBefore(scaled, relative_factor, no_change, severity="warning"),
        ChangedBefore(odd & ~only_scaled, residual, floor),
    ]


def _missing_from_mean(reductions: Reductions, floor: Floats) -> Bools:
    """[T, N, G] cells of the one rank without whose gradient the result is the mean."""
    own_factor = reductions.groups("group_reduce_own_factor")
    own_residual = reductions.groups("group_reduce_own_residual")
    missing = (own_residual <= floor) & (np.abs(own_factor) <= floor)
    if any(env.reduce_lossy for env in reductions.envs):
        return np.zeros_like(missing)
    return missing & (np.count_nonzero(missing, axis=1, keepdims=True) == 1)


def _usual_factors(factor: Floats, residual: Floats, floor: Floats) -> tuple[Floats, Bools]:
    """[T, 1, G] the factor with which half of all ranks, or more, gave gradients into a reduction, 1 where there is
    none such, and [T, N, G] the ranks that have it: 1, 1/N (those that divide first), or the median.
    """
    num_workers = factor.shape[1]
    # a column of NaN alone would make nanmedian warn
    measured_factor = np.where(np.any(~np.isnan(factor), axis=1, keepdims=True), factor, 0.0)
    usual_factor: Floats = np.ones_like(factor[:, :1])
    is_usual: Bools = np.zeros(factor.shape, dtype=np.bool_)
    for candidate in (1.0, 1 / num_workers, np.nanmedian(measured_factor, axis=1, keepdims=True)):
        near: Bools = (residual <= floor) & (np.abs(factor - candidate) <= floor * np.abs(candidate)) & (factor != 0)
        has_half = 2 * np.count_nonzero(near, axis=1, keepdims=True) >= num_workers
        better: Bools = ~any_over(is_usual, 1)[:, None, :] & has_half
        usual_factor, is_usual = np.where(better, candidate, usual_factor), np.where(better, near, is_usual)
    return usual_factor, is_usual


def _is_token_share(reductions: Reductions, factor: Floats) -> Bools:
    """[T, N, G] cells whose factor is the rank's tokens over those of other ranks: weights, that are meant to be."""
    tokens_TN, measured_TN = reductions.numbers("tokens")
    tokens_TN = np.where(measured_TN, tokens_TN, np.nan)
    filled_TN = np.where(measured_TN.any(axis=1, keepdims=True), tokens_TN, 1.0)
    most_tokens_T1 = np.nanmax(filled_TN, axis=1, keepdims=True)
    return np.abs(factor - (tokens_TN / most_tokens_T1)[:, :, None]) <= NEAR
