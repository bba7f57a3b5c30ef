"""Proof that no worker can have stood out in a quantity so far, by numbers that a further step only adds to.

The evidence of ``outliers`` is divided by V of the whole Run, which changes while a Run grows, and lowered where
workers read their own samples again. Neither can raise it by much: with V >= 1 and x the sum of the logs of e-values
since a start, exp(x / V) <= max(1, exp(x)), so that the detector of t steps, a sum over t starts, is at most t higher
than that with V = 1. So where the undivided detector plus t stays below the threshold, no detector has reached it,
whatever V is.

This holds where the values are those that were measured: all workers of a step with equally many samples, and no
lasting difference in their tokens.

Letters: R steps at which two workers or more can be compared, M workers of one declared group, D = 1 + G detectors a
worker, B bets, N workers, T steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import Floats, any_over
from trueline.judge.follows import Stretch
from trueline.judge.stats.alarm_budget import alarm_budget_of
from trueline.judge.stats.exchangeability import BETS, SPREAD_STEPS, e_values, scores_after
from trueline.judge.stats.memoize import memoized
from trueline.laws.unlike_workers.comparable import FIRST_STEPS
from trueline.laws.unlike_workers.outliers import (
    Quantity,
    enough_steps,
    ratio_among,
    thresholds_of,
    whole_and_groups,
)
from trueline.laws.unlike_workers.series import MOSTLY, WorkerSeries, as_measured, measured_alone
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.store.reader import Run

Arrays = Mapping[str, NDArray[Any]]

_CHUNK_STEPS = 256
"""Steps whose bets are held at once."""

_BLOCK_STEPS = 10
"""Steps in which equal shares of tokens are counted together, whatever the stretch."""

_HIGHEST = 1e200
"""The value at which a detector stops, before it overflows."""

ROUNDING = 1e-6
"""Nats by which sums of logs may be off."""


@dataclass(frozen=True)
class Quiet:
    """The workers' detectors in one quantity, all below their thresholds; they are carried as arrays by name, those of
    a group of workers with its number behind.
    """

    quantity: Quantity

    @property
    def name(self) -> str:
        return f"quiet in {self.quantity}"

    def advance(self, stretch: Stretch, carried: Arrays) -> Arrays | None:
        """The arrays that are carried past the steps of ``stretch``; None where values may not be those that were
        measured, so that only the whole Run tells.
        """
        run, part = stretch.run, stretch.part
        series = as_measured(part)
        if self.quantity == "direction" and series.num_workers < 3:  # the check says why it cannot tell
            return None
        if has_uneven_samples(series):
            return None
        whole_TN, groups_TNG = whole_and_groups(series, self.quantity)
        measured_G = any_over(np.isfinite(groups_TNG), (0, 1))
        values_TDN = np.concatenate([whole_TN[:, None], np.moveaxis(groups_TNG, 2, 1)], axis=1)
        before = carried.get("measured", np.zeros_like(measured_G))
        if len(before) != len(measured_G):
            return None
        state: dict[str, NDArray[Any]] = {
            "measured": before | measured_G,
            "tokens": token_share_counts(series, carried),
        }
        for number, members in enumerate(groups_of(series)):
            state |= detectors_after(values_TDN[:, :, list(members)], number, carried)
        if "ratios" in carried:  # V of the first steps, which changes no more
            state["ratios"] = carried["ratios"]
        elif len(run.steps) >= FIRST_STEPS and part.steps[-1] >= run.steps[FIRST_STEPS - 1]:
            state["ratios"] = self._ratios(run)
        return state

    def conclude(self, run: Run, carried: Arrays) -> list[Finding] | None:
        """No findings, where the checks of the quantity have enough steps and none of the workers stands out."""
        if not tokens_weigh_alike(carried):
            return None
        numbers = range(sum(name.startswith("rows ") for name in carried))
        highest = [carried[f"highest {number}"] for number in numbers]
        rows = [int(carried[f"rows {number}"]) for number in numbers]
        among = sum(highest_DM.shape[1] for highest_DM in highest)
        thresholds_D, _ = thresholds_of(alarm_budget_of(run), self.quantity, carried["measured"], among=among)
        for highest_DM, num_rows in zip(highest, rows, strict=True):
            # As many starts as there were rows, by which dividing by V may raise the detector (see above).
            if np.any(np.log(highest_DM + max(num_rows, 1)) >= thresholds_D[:, None] - ROUNDING):
                return None
        ratios = carried["ratios"] if "ratios" in carried else self._ratios(run)
        steps = [
            (float(ratio), num_rows, int(highest_DM.shape[1]))
            for ratio, num_rows, highest_DM in zip(ratios, rows, highest, strict=True)
        ]
        try:
            enough_steps(self.quantity, steps, float(thresholds_D[0]))
        except CannotTell:
            return None
        return []

    def _ratios(self, run: Run) -> Floats:
        """V of each group of workers, in the first steps."""
        start = start_of(run, FIRST_STEPS)
        return np.array([ratio_among(start, self.quantity, members) for members in groups_of(start)])


@memoized
def start_of(run: Run, num_steps: int) -> WorkerSeries:
    """The whole losses, norms and cosines of the first steps, by which the dependence of workers is known."""
    return measured_alone(run if len(run.steps) <= num_steps else run.before(int(run.steps[num_steps])))


def groups_of(series: WorkerSeries) -> tuple[tuple[int, ...], ...]:
    """The declared groups of workers; all where none is declared."""
    return series.declared or (tuple(range(series.num_workers)),)


def has_uneven_samples(series: WorkerSeries) -> bool:
    """True where workers that are compared had unequally many samples at any step."""
    for members in groups_of(series):
        samples_TM = series.samples[:, list(members)]
        known_T = np.all(np.isfinite(samples_TM) & (samples_TM > 0), axis=1)
        if np.any(samples_TM[known_T] != samples_TM[known_T][:, :1]):
            return True
    return False


def token_share_counts(series: WorkerSeries, carried: Arrays) -> Floats:
    """[4] the number of steps at which the tokens of all workers are known; 1 where all had equally many at each, or 0;
    the largest number of steps, added up over workers, at which a worker had one share of them; the number of workers.
    Where the third is small, or all are equal, tokens count alike (``series.lasting_weights``).
    """
    num_known, even, num_modal, _ = carried.get("tokens", np.array([0.0, 1.0, 0.0, 0.0])).tolist()
    with np.errstate(invalid="ignore"):
        share_TN = series.tokens / series.tokens.mean(axis=1, keepdims=True)
    for begin in range(0, len(share_TN), _BLOCK_STEPS):
        block_KN = share_TN[begin : begin + _BLOCK_STEPS]
        block_KN = block_KN[np.isfinite(block_KN).all(axis=1)]
        alike = bool(np.all(block_KN == block_KN[:, :1]))
        counts = [] if alike else [int(np.unique(shares_K, return_counts=True)[1].max()) for shares_K in block_KN.T]
        num_known += len(block_KN)
        even = even and alike
        num_modal += block_KN.size if alike else sum(counts)
    return np.array([num_known, float(even), num_modal, series.num_workers])


def tokens_weigh_alike(carried: Arrays) -> bool:
    """True where no tokens of the workers can weigh them, by ``token_share_counts``."""
    num_known, even, num_modal, num_workers = carried["tokens"].tolist()
    return bool(even or num_modal < MOSTLY * num_known * num_workers)


def detectors_after(values_TDM: Floats, number: int, carried: Arrays) -> dict[str, NDArray[Any]]:
    """The detectors [B, D, M] of one group of workers after these steps, and the highest [D, M] that their mean over
    the bets has been.
    """
    values_RDM = values_TDM[np.any(np.count_nonzero(np.isfinite(values_TDM), axis=2) > 1, axis=1)]
    shape = values_TDM.shape[1:]
    spreads = carried.get(f"spreads {number}", np.zeros((0, shape[0])))
    detectors_BDM = carried.get(f"detectors {number}", np.zeros((len(BETS), *shape)))
    highest = carried.get(f"highest {number}", np.zeros(shape))
    if len(values_RDM):
        z_RDM, spread_RD = scores_after(values_RDM, spreads)
        spreads = np.concatenate([spreads, spread_RD])[-(SPREAD_STEPS - 1) :]
        detectors_BDM = detectors_BDM.copy()
        for begin in range(0, len(z_RDM), _CHUNK_STEPS):
            e_RBDM = e_values(z_RDM[begin : begin + _CHUNK_STEPS])
            for e_BDM in e_RBDM:
                detectors_BDM += 1  # a start at this step
                detectors_BDM *= e_BDM
                np.minimum(detectors_BDM, _HIGHEST, out=e_BDM)
                detectors_BDM[:] = e_BDM
            highest = np.maximum(highest, e_RBDM.mean(axis=1).max(axis=0))
    rows = np.array(int(carried.get(f"rows {number}", np.array(0))) + len(values_RDM))
    keys = ("spreads", "detectors", "highest", "rows")
    return {
        f"{name} {number}": array for name, array in zip(keys, (spreads, detectors_BDM, highest, rows), strict=True)
    }
