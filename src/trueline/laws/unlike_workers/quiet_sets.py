"""Proof that no workers can have stood out together so far: too far apart, too close, or with too unequal tokens.

As in ``quiet``, V is not known before the end, and undivided detectors are higher but for the number of their starts.
Only the bets that an order recurs (``stats.persistence``) reach back by V: they are followed where V is 1.

Here as there workers have equally many samples at each step, and none of them weighs more. Losses of single samples are
not followed: those that a worker reads again are no evidence, and which these are only all samples tell.

Letters: R steps at which workers can be compared, M workers of one declared group, B bets, P pairs of workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import Floats
from trueline.judge.follows import Stretch
from trueline.judge.stats import closest_pairs, persistence
from trueline.judge.stats.alarm_budget import alarm_budget_of
from trueline.judge.stats.alarms import steps_needed
from trueline.judge.stats.autocorrelation import INDEPENDENT
from trueline.judge.stats.exchangeability import SPREAD_STEPS, log_detectors, scores_after
from trueline.laws.unlike_workers.comparable import (
    FIRST_STEPS,
    comparable_groups,
    compared_among,
    dependence_among,
    measured_steps,
    num_sample_detectors,
)
from trueline.laws.unlike_workers.copies import (
    EQUAL_STEPS,
    PAIR_STATISTICS,
    is_paired,
    num_pair_detectors,
    pair_columns,
    require_enough,
)
from trueline.laws.unlike_workers.quiet import (
    ROUNDING,
    Arrays,
    detectors_after,
    has_uneven_samples,
    start_of,
    token_share_counts,
    tokens_weigh_alike,
)
from trueline.laws.unlike_workers.series import WorkerSeries, as_measured
from trueline.laws.unlike_workers.token_counts import (
    counts_among,
    log_noise_e_values,
    log_tokens,
    noise_factors,
    num_lasting,
)
from trueline.schema.finding import Finding
from trueline.store.reader import Run


@dataclass(frozen=True)
class QuietOrder:
    """The bets that workers keep their order, in losses and in gradient norms, all lost so far."""

    name: str = "quiet order"

    def advance(self, stretch: Stretch, carried: Arrays) -> Arrays | None:
        """The arrays that are carried past the steps of ``stretch``; None where values may not be those measured."""
        series = _followed_series(stretch)
        if series is None:
            return None
        state: dict[str, NDArray[Any]] = {"tokens": token_share_counts(series, carried)}
        for number, members in enumerate(comparable_groups(series)):
            for quantity, values_TN in (("loss", series.loss), ("norm", series.log_norm)):
                _, values_RM = compared_among(series, values_TN, members)
                state |= _order_detectors_after(values_RM, f"{quantity} {number}", carried)
        run = stretch.run
        num_steps = measured_steps(int(np.searchsorted(run.steps, int(stretch.part.steps[-1]))) + 1)
        if num_steps >= FIRST_STEPS:
            # Measured anew only where the number of first steps doubled: it takes longer than all bets of a stretch.
            dependent = carried.get("dependent", np.zeros(2))
            if dependent[0] != num_steps:
                dependent = np.array([num_steps, _is_any_dependent(run, num_steps)])
            state["dependent"] = dependent
        return state

    def conclude(self, run: Run, carried: Arrays) -> list[Finding] | None:
        """No findings, where there are enough steps for one and no order recurs; V is 1."""
        if not tokens_weigh_alike(carried):
            return None
        num_steps = measured_steps(len(run.steps))
        dependent = carried.get("dependent", np.zeros(2))
        if dependent[1] if dependent[0] == num_steps else _is_any_dependent(run, num_steps):
            return None
        series = start_of(run, 1)
        threshold = alarm_budget_of(run).log_threshold("sample-losses", among=num_sample_detectors(series))
        has_enough = False
        for number, members in enumerate(comparable_groups(series)):
            needed = 1 + steps_needed(
                threshold, nats=math.log(2) * (len(members) // 2), num_bets=len(persistence.HORIZONS)
            )
            for quantity in ("loss", "norm"):
                if float(carried[f"highest {quantity} {number}"]) >= threshold - ROUNDING:
                    return None
                has_enough |= int(carried[f"rows {quantity} {number}"]) >= needed
        return [] if has_enough else None


@dataclass(frozen=True)
class QuietPairs:
    """The bets that two workers are close to each other, all lost so far."""

    name: str = "quiet pairs"

    def advance(self, stretch: Stretch, carried: Arrays) -> Arrays | None:
        """The arrays that are carried past the steps of ``stretch``; None where values may not be those that were
        measured, or all workers have equal losses.
        """
        series = _followed_series(stretch)
        if series is None:
            return None
        state: dict[str, NDArray[Any]] = {"tokens": token_share_counts(series, carried)}
        for number, members in enumerate(comparable_groups(series)):
            loss_TM = series.loss[:, list(members)]
            equal_T = np.isfinite(loss_TM).all(axis=1) & (loss_TM == loss_TM[:, :1]).all(axis=1)
            equal = int(carried.get(f"equal {number}", np.array(0))) + int(np.count_nonzero(equal_T))
            if equal >= EQUAL_STEPS:  # a finding, if they are finely resolved
                return None
            state[f"equal {number}"] = np.array(equal)
            if not is_paired(members):
                continue
            before = carried.get(f"pairs {number}")
            heights = [None] * len(PAIR_STATISTICS) if before is None else list(before)
            rows = carried.get(f"rows {number}", np.zeros(len(PAIR_STATISTICS), dtype=np.int64)).copy()
            after: list[Floats] = []
            for index, (_, rows_R, values_RMC) in enumerate(pair_columns(series, members)):
                after.append(closest_pairs.states_after(values_RMC, heights[index]))
                rows[index] += len(rows_R)
            state |= {f"pairs {number}": np.stack(after), f"rows {number}": rows}
        return state

    def conclude(self, run: Run, carried: Arrays) -> list[Finding] | None:
        """No findings, where there are enough steps for one and no two workers are close. Raises ``CannotTell`` where
        there are no pairs to compare.
        """
        if not tokens_weigh_alike(carried):
            return None
        series, budget = start_of(run, 1), alarm_budget_of(run)
        threshold = budget.log_threshold("pairs", among=num_pair_detectors(series))
        num_steps_of: dict[tuple[int, ...], int] = {}
        for number, members in enumerate(comparable_groups(series)):
            if is_paired(members):
                rows = carried[f"rows {number}"]
                with np.errstate(divide="ignore"):  # a state of 0 is a height of -inf
                    highest = np.log(carried[f"pairs {number}"][:, -1].max(axis=1, initial=0.0))
                if np.any(np.logaddexp(highest, np.log(np.maximum(rows, 1))) >= threshold - ROUNDING):
                    return None
                num_steps_of[members] = int(rows.max())
        require_enough(series, budget, num_steps_of)
        return []


@dataclass(frozen=True)
class QuietTokens:
    """The bets that workers have unequal numbers of tokens, for good or at each step, all lost so far."""

    name: str = "quiet tokens"

    def advance(self, stretch: Stretch, carried: Arrays) -> Arrays | None:
        """The arrays that are carried past the steps of ``stretch``; None where workers have unequally many samples."""
        series = as_measured(stretch.part)
        if has_uneven_samples(series):
            return None
        state: dict[str, NDArray[Any]] = {}
        for number, members in enumerate(comparable_groups(series)):
            _, values_RM = compared_among(series, log_tokens(series), members)
            state |= detectors_after(values_RM[:, None], number, carried)
            counts_TM = counts_among(series, members)
            factors_T = noise_factors(counts_TM)
            log_e_RB = log_noise_e_values(factors_T[np.isfinite(factors_T)])
            state |= _detector_after(log_e_RB, f"wild {number}", carried)
            num_compared = np.count_nonzero(np.count_nonzero(np.isfinite(counts_TM), axis=1) > 1)
            state[f"counted {number}"] = np.array(
                int(carried.get(f"counted {number}", np.array(0))) + int(num_compared)
            )
        return state

    def conclude(self, run: Run, carried: Arrays) -> list[Finding] | None:
        """No findings, where there are enough steps for one and tokens are not unequal."""
        series, budget = start_of(run, 1), alarm_budget_of(run)
        groups = comparable_groups(series)
        lasting = budget.log_threshold("tokens", among=num_lasting(series))
        wild = budget.log_threshold("tokens", among=2 * len(groups)) if groups else math.inf
        has_enough = False
        for number, members in enumerate(groups):
            rows = int(carried[f"rows {number}"])
            bound = np.log(carried[f"highest {number}"].max() + max(rows, 1))
            wild_rows = int(carried[f"rows wild {number}"])
            wild_bound = np.logaddexp(float(carried[f"highest wild {number}"]), math.log(max(wild_rows, 1)))
            if bound >= lasting - ROUNDING or wild_bound >= wild - ROUNDING:
                return None
            num_compared = int(carried[f"counted {number}"])
            needed = steps_needed(lasting, nats=math.log(len(members)), num_bets=2)
            has_enough |= num_compared > 0 and (num_compared >= needed or not rows)
        return [] if has_enough else None


def _followed_series(stretch: Stretch) -> WorkerSeries | None:
    """The series of the stretch; None where workers left what is not followed (see above)."""
    series = as_measured(stretch.part)
    return None if has_uneven_samples(series) or stretch.part.measured("part_losses").any() else series


def _is_any_dependent(run: Run, num_steps: int) -> bool:
    """True where a group of workers was autocorrelated in the first steps."""
    start = start_of(run, num_steps)
    return any(dependence_among(start, "loss", members) != INDEPENDENT for members in comparable_groups(start))


def _order_detectors_after(values_RM: Floats, name: str, carried: Arrays) -> dict[str, NDArray[Any]]:
    spreads = carried.get(f"spreads {name}", np.zeros(0))
    z_RM, spread_R = scores_after(values_RM, spreads)
    past = carried.get(f"past {name}", np.zeros((2, len(persistence.HORIZONS), values_RM.shape[1])))
    log_e_RB, past = persistence.log_e_after(z_RM, past)
    spreads = np.concatenate([spreads, spread_R])[-(SPREAD_STEPS - 1) :]
    return {f"spreads {name}": spreads, f"past {name}": past, **_detector_after(log_e_RB, name, carried)}


def _detector_after(log_e_RB: Floats, name: str, carried: Arrays) -> dict[str, NDArray[Any]]:
    """A detector after these steps: the state of each bet, the highest that their average has been, and the number of
    steps.
    """
    num_bets = int(log_e_RB.shape[1])
    log_m = carried.get(f"detector {name}", np.full(num_bets, -np.inf))
    highest = float(carried.get(f"highest {name}", np.array(-np.inf)))
    if len(log_e_RB):
        log_m_RB = log_detectors(log_e_RB, before=log_m)
        heights_R = np.logaddexp.reduce(log_m_RB, axis=-1) - math.log(num_bets)
        highest, log_m = max(highest, float(heights_R.max())), log_m_RB[-1].copy()
    rows = np.array(int(carried.get(f"rows {name}", np.array(0))) + len(log_e_RB))
    return {f"detector {name}": log_m, f"highest {name}": np.array(highest), f"rows {name}": rows}
