"""The false-alarm budget of all statistical checks together, and each one's share of it.

One number bounds the whole family: at most ``false_alarms`` expected alarms per 10,000 healthy steps. Every
statistic is an e-detector (``exchangeability``): alarming at the height 10,000 / (false_alarms * weight) costs at most
``weight`` of the budget, and shares add up whatever the dependence between statistics (expectations do). Within a
share the weight is split evenly over workers, and over parameter groups or pairs where there are several.

Shares are fixed before anything is seen. Loss, norm and direction weigh twice as much as the same per parameter group,
since most faults show in the whole; an error of a factor of two costs ln 2 of evidence, a step or two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from trueline.judge.stats import exchangeability
from trueline.schema.plan import FALSE_ALARMS

if TYPE_CHECKING:
    from trueline.store.reader import Run

Statistic = Literal["loss", "norm", "norm-groups", "direction", "direction-groups", "pairs", "sample-losses", "tokens"]

SHARES: Mapping[Statistic, float] = MappingProxyType(
    {
        "loss": 1 / 6,
        "norm": 1 / 6,
        "norm-groups": 1 / 12,
        "direction": 1 / 6,
        "direction-groups": 1 / 12,
        "pairs": 1 / 12,
        "sample-losses": 1 / 6,
        "tokens": 1 / 12,
    }
)
"""Fraction of the budget that each statistic may use up; they add up to 1."""


@dataclass(frozen=True)
class AlarmBudget:
    """``false_alarms``: expected false alarms per 10,000 healthy steps, over the whole family of statistics."""

    false_alarms: float = FALSE_ALARMS

    def weight(self, statistic: Statistic, *, among: int) -> float:
        """The share of one of ``among`` detectors (workers, times groups or pairs) of a statistic."""
        return SHARES[statistic] / max(among, 1)

    def log_threshold(self, statistic: Statistic, *, among: int) -> float:
        """Natural log of the height at which one of ``among`` detectors of a statistic alarms."""
        return exchangeability.log_threshold(false_alarms=self.false_alarms, weight=self.weight(statistic, among=among))

    def false_alarm_rate(self, statistic: Statistic, log_height: float, *, among: int, num_steps: int) -> float:
        """Bound on the probability that ``num_steps`` healthy steps lift any detector of the family as far above its
        share as ``log_height`` is above this one's.
        """
        return exchangeability.false_alarm_rate(
            log_height, num_steps=num_steps, weight=self.weight(statistic, among=among)
        )


def alarm_budget_of(run: Run) -> AlarmBudget:
    """The budget that the Run's plan asked for (``Plan.false_alarms``), by default ``FALSE_ALARMS``."""
    false_alarms = run.manifest.plan.get("false_alarms")
    # Plans of damaged or foreign manifests may hold anything here.
    return (
        AlarmBudget(float(false_alarms))
        if isinstance(false_alarms, int | float) and false_alarms > 0
        else AlarmBudget()
    )
