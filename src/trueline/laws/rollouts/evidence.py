"""When the evidence of rollouts crosses the line, and the Finding that says so.

The checks of rollouts have a budget of their own, of the size that ``Plan.false_alarms`` says, as those of jumps have:
each e-process is a Shiryaev-Roberts detector over steps (``stats/exchangeability``), so shares add up.

R sequences, T steps, B bets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from trueline.judge.stats import exchangeability
from trueline.judge.stats.alarm_budget import alarm_budget_of
from trueline.judge.stats.alarms import alarm_of
from trueline.laws.rollouts.laws import more_often
from trueline.laws.rollouts.rows import Rows, by_step
from trueline.schema.finding import Finding, Severity
from trueline.store.reader import Run

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Statistic = Literal[
    "above", "below", "sharper", "flatter", "cut", "gap", "grows", "prefill", "decode", "onset", "update"
]
Law = Literal["above", "below", "cut", "sharper", "flatter"]
MOST_READ = 256
"""Sequences of which runs of four tokens are counted."""
SHARES: Mapping[Statistic, float] = {
    "above": 1 / 8,
    "below": 1 / 16,
    "cut": 1 / 16,
    "sharper": 1 / 8,
    "flatter": 1 / 8,
    "gap": 1 / 8,
    "grows": 1 / 8,
    "prefill": 1 / 16,
    "decode": 1 / 16,
    "onset": 1 / 16,
    "update": 1 / 16,
}
"""Fraction of the budget that each may use up; they add up to 1."""


LOST = 1.0
"""Nats against a fault at steps that may be of it all the same."""


@dataclass(frozen=True)
class Found:
    """The first step at which it may have begun, the last of the evidence, the step at which it crossed the line, and a
    bound on the chance that a healthy Run of so many steps would have brought it.
    """

    first: int
    last: int
    crossed: int
    false_alarm_rate: float

    def within(self, rows: Rows) -> Bools:
        """[R] the sequences of these steps."""
        return (rows.step >= self.first) & (rows.step <= self.last)

    def of(self, rows: Rows) -> Rows:
        """The same as rows."""
        return rows.chosen(self.within(rows))


def crossed(run: Run, statistic: Statistic, steps_T: Ints, log_e_TB: Floats) -> Found | None:
    """Where logs of bets, one row a step, cross the line of a statistic."""
    weight = SHARES[statistic]
    threshold = exchangeability.log_threshold(false_alarms=alarm_budget_of(run).false_alarms, weight=weight)
    alarm = alarm_of(log_e_TB, threshold=threshold)
    if alarm is None:
        return None
    rate = exchangeability.false_alarm_rate(alarm.log_height, num_steps=len(steps_T), weight=weight)
    first = _may_begin(log_e_TB, alarm.first)
    return Found(int(steps_T[first]), int(steps_T[alarm.last]), int(steps_T[alarm.crossed]), rate)


def _may_begin(log_e_TB: Floats, first: int) -> int:
    """The index of the earliest step up to ``first`` from which on some bet has not lost more than ``LOST``: a bet that
    is too high for a weak fault loses in one step and wins in the next.
    """
    won_T = np.cumsum(log_e_TB[:first][::-1], axis=0).max(axis=1, initial=-np.inf)
    lost = np.flatnonzero(won_T < -LOST)
    return first - (int(lost[0]) if len(lost) else first)


def law_broken(run: Run, rows: Rows, law: Law) -> Found | None:
    """Where a law of sampled tokens is broken."""
    return crossed(run, law, *by_step(rows, rows.law[law]))


def unique_of_four(run: Run, found: Found) -> float:
    """The share of runs of four tokens of a response that stand in it once, over its first sequences; NaN for none. Of
    text it is high, as of tokens without sense; a policy that repeats itself has a low one.
    """
    shares: list[float] = []
    for table in cast(Any, run.kept("rollouts")).pieces(["step", "response_ids"]):
        for row in cast(list[dict[str, Any]], table.to_pylist()):
            ids: list[int] = row["response_ids"] or []
            if found.first <= row["step"] <= found.last and len(ids) >= 8:
                runs = {tuple(ids[at : at + 4]) for at in range(len(ids) - 3)}
                shares.append(len(runs) / (len(ids) - 3))
            if len(shares) == MOST_READ:
                return float(np.mean(shares))
    return float(np.mean(shares)) if shares else float("nan")


def too_often(run: Run, statistic: Statistic, rows: Rows, hit_R: Bools, *, chance: float) -> Found | None:
    """Where sequences show something more often than with probability ``chance`` (below 1)."""
    bets = tuple(bet / chance for bet in (0.3, 0.6, 0.9))
    return crossed(run, statistic, *by_step(rows, more_often(hit_R, chance, bets)))


def finding(
    code: str,
    claim: str,
    found: Found | None,
    *,
    steps: tuple[int, int] | None = None,
    severity: Severity = "warning",
    measured: float | None = None,
    expected: float | None = None,
    unit: str = "",
    evidence: Mapping[str, Any] | None = None,
    next: tuple[str, ...] = (),
) -> Finding:
    """A Finding on the steps of ``found``, or exact on ``steps``."""
    first, last = (found.first, found.last) if found is not None else steps or (None, None)
    more = {"crossed_step": found.crossed} if found is not None else {}
    return Finding(
        code=code,
        severity=severity,
        claim=claim,
        step_first=first,
        step_last=last,
        measured=measured,
        expected=expected,
        unit=unit,
        false_alarm_rate=0.0 if found is None else found.false_alarm_rate,
        evidence={**more, **(evidence or {})},
        next=next,
    )


def as_trainer(rows: Rows) -> bool:
    """Whether tokens are of the trainer's distribution though the engine recorded another: -log p is the entropy on
    average, to within a quarter of the gap. At another temperature it is off by sqrt(V) or more of these.
    """
    excess, gap = over(rows.sums["excess"], rows.sums["judged"]), over(rows.sums["abs"], rows.sums["tokens"])
    return abs(excess) < gap / 4


def over(part: Floats, whole: Floats) -> float:
    """The sum of one over that of the other; NaN for nothing."""
    total = float(whole.sum())
    return float(part.sum()) / total if total > 0 else float("nan")


def span(run_steps: Ints) -> str:
    """``step 3`` or ``steps 3-90``."""
    first, last = int(run_steps.min()), int(run_steps.max())
    return f"step {first}" if first == last else f"steps {first}-{last}"
