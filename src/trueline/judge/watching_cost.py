"""Cost of watching a Run: the time that Trueline measured of itself, over the time of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueline.schema.plan import EARLY_STEPS, SHORT_S, WATCH_ONLY, Plan
from trueline.schema.text.words import milliseconds

if TYPE_CHECKING:
    from trueline.store.reader import Run

FEWEST = 100
"""Steps after the first ones that tell what watching costs once it has settled: as many as the longest interval."""


@dataclass(frozen=True)
class WatchingCost:
    """``share`` of step time and ``own_s`` seconds of each step, on the rank where it is most, and the ``step_s``
    seconds of its steps; ``settled`` where that is of steps after the first ``EARLY_STEPS``. ``budget`` is the share
    that watching aims at, None where the Plan fixes which steps are sampled, or records what steps compute.
    """

    share: float
    own_s: float
    step_s: float
    settled: bool
    budget: float | None

    @property
    def is_over(self) -> bool:
        """True if it is more than the budget, and that is to be said: of the first steps only where they are long, as
        the least that is watched is a large share of a toy's.
        """
        return self.budget is not None and self.share > self.budget and (self.settled or self.step_s >= SHORT_S)

    @property
    def words(self) -> str:
        """``3.6 % of step time, 2.9 ms of each (aims at 1 %)``."""
        parts = [] if self.settled else [f"first {EARLY_STEPS} steps"]
        parts += (
            [] if self.budget is None else [f"{'' if self.settled else 'then it '}aims at {100 * self.budget:.2g} %"]
        )
        where = f" ({'; '.join(parts)})" if parts else ""
        return f"{100 * self.share:.2g} % of step time, {milliseconds(self.own_s)} of each{where}"


def watching_cost(run: Run) -> WatchingCost | None:
    """The cost of ``run``; None where it was not measured."""
    step_s_TN, timed_TN = run.pivot("step_s")
    own_s_TN, owned_TN = run.pivot("own_s")
    both_TN = timed_TN & owned_TN & (np.nan_to_num(step_s_TN) > 0)
    if not both_TN.any():
        return None
    # The first steps are watched more closely and tell too much of a long job's cost.
    late_T = run.steps >= run.steps[0] + EARLY_STEPS
    settled = int(both_TN[late_T].any(axis=1).sum()) >= FEWEST
    both_TN = both_TN & late_T[:, None] if settled else both_TN
    own_N, step_N = (np.where(both_TN, values_TN, 0.0).sum(axis=0) for values_TN in (own_s_TN, step_s_TN))
    counts_N = both_TN.sum(axis=0)
    share_N = np.divide(own_N, step_N, out=np.zeros(len(own_N)), where=step_N > 0)
    worst = int(share_N.argmax())
    count = int(counts_N[worst])
    plan = run.manifest.plan
    return WatchingCost(
        share=float(share_N[worst]),
        own_s=float(own_N[worst]) / count,
        step_s=float(step_N[worst]) / count,
        settled=settled,
        budget=_budget(plan),
    )


def _budget(plan: dict[str, Any]) -> float | None:
    settings = Plan().kept() | plan
    return settings["budget"] if settings["every"] is None and settings["preset"] in WATCH_ONLY else None
