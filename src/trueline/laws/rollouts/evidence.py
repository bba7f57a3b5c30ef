"""Steps at which the evidence of rollouts crosses the line, and the Finding on them.

The checks of rollouts have a budget of their own, of the size that ``Plan.false_alarms`` says, as those of jumps have:
each e-process is a Shiryaev-Roberts detector over steps (``stats/exchangeability``), so shares add up.

R sequences, T steps, B bets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from trueline.judge.stats import exchangeability
from trueline.judge.stats.alarm_budget import alarm_budget_of
from trueline.judge.stats.alarms import alarm_of
from trueline.laws.rollouts.e_values import more_often
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
MAX_SEQUENCES = 256
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


NO_PENALTY: Mapping[str, float] = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Penalties of engines by name, with the value that changes nothing."""

WORDS_LEFT_OUT = ("bad_words", "allowed_token_ids", "min_tokens", "logit_bias", "structured_outputs")
"""Settings of engines that leave words out, or move some."""

ONE_SIDE, FEWEST_TOKENS = 0.98, 100
"""Share of the tokens beyond rounding that are off in one direction, and fewest of them. Of errors that know no side,
hardly ever so many are (2^-85).
"""

NATS = 7.0
"""Nats by which tokens have to be likelier in one of two distributions than in the other: 1 in 1,000 by chance."""

MAX_LOSS = 1.0
"""Nats against a fault at steps that may be of it all the same."""


@dataclass(frozen=True)
class Crossing:
    """First step at which a fault may have begun, last of the evidence, step at which it crossed the line, and a bound
    on the chance that a healthy Run of so many steps would have brought it.
    """

    first: int
    last: int
    crossed: int
    false_alarm_rate: float

    def in_steps(self, rows: Rows) -> Bools:
        """[R] sequences of these steps."""
        return (rows.step >= self.first) & (rows.step <= self.last)

    def select(self, rows: Rows) -> Rows:
        """Rows of the sequences of these steps."""
        return rows.subset(self.in_steps(rows))


def find_crossing(run: Run, statistic: Statistic, steps_T: Ints, log_e_TB: Floats) -> Crossing | None:
    """Crossing of the line of a statistic by logs of bets, one row a step; None where they do not."""
    weight = SHARES[statistic]
    threshold = exchangeability.log_threshold(false_alarms=alarm_budget_of(run).false_alarms, weight=weight)
    alarm = alarm_of(log_e_TB, threshold=threshold)
    if alarm is None:
        return None
    rate = exchangeability.false_alarm_rate(alarm.log_height, num_steps=len(steps_T), weight=weight)
    first = _earliest_row(log_e_TB, alarm.first)
    return Crossing(int(steps_T[first]), int(steps_T[alarm.last]), int(steps_T[alarm.crossed]), rate)


def _earliest_row(log_e_TB: Floats, first: int) -> int:
    """Index of the earliest step up to ``first`` from which on some bet has not lost more than ``LOST``: a bet that
    is too high for a weak fault loses in one step and wins in the next.
    """
    won_T = np.cumsum(log_e_TB[:first][::-1], axis=0).max(axis=1, initial=-np.inf)
    lost_rows = np.flatnonzero(won_T < -MAX_LOSS)
    return first - (int(lost_rows[0]) if len(lost_rows) else first)


def find_broken_law(run: Run, rows: Rows, law: Law) -> Crossing | None:
    """Crossing by the bets against a law of sampled tokens; None where it holds."""
    return find_crossing(run, law, *by_step(rows, rows.law[law]))


def share_of_unique_runs(run: Run, crossing: Crossing) -> float:
    """The share of runs of four tokens of a response that stand in it once, over its first sequences; NaN for none. Of
    text it is high, as of tokens without sense; a policy that repeats itself has a low one.
    """
    shares: list[float] = []
    for table in cast(Any, run.kept("rollouts")).pieces(["step", "response_ids"]):
        for row in cast(list[dict[str, Any]], table.to_pylist()):
            ids: list[int] = row["response_ids"] or []
            if crossing.first <= row["step"] <= crossing.last and len(ids) >= 8:
                runs = {tuple(ids[at : at + 4]) for at in range(len(ids) - 3)}
                shares.append(len(runs) / (len(ids) - 3))
            if len(shares) == MAX_SEQUENCES:
                return float(np.mean(shares))
    return float(np.mean(shares)) if shares else float("nan")


def find_excess(run: Run, statistic: Statistic, rows: Rows, hit_R: Bools, *, chance: float) -> Crossing | None:
    """Crossing by sequences that are hit more often than with probability ``chance`` (below 1); else None."""
    bets = tuple(bet / chance for bet in (0.3, 0.6, 0.9))
    return find_crossing(run, statistic, *by_step(rows, more_often(hit_R, chance, bets)))


def finding(
    code: str,
    claim: str,
    crossing: Crossing | None,
    *,
    steps: tuple[int, int] | None = None,
    severity: Severity = "warning",
    measured: float | None = None,
    expected: float | None = None,
    unit: str = "",
    evidence: Mapping[str, Any] | None = None,
    next: tuple[str, ...] = (),
) -> Finding:
    """A Finding on the steps of ``crossing``, or exact on ``steps``."""
    first, last = (crossing.first, crossing.last) if crossing is not None else steps or (None, None)
    more = {"crossed_step": crossing.crossed} if crossing is not None else {}
    return Finding(
        code=code,
        severity=severity,
        claim=claim,
        step_first=first,
        step_last=last,
        measured=measured,
        expected=expected,
        unit=unit,
        false_alarm_rate=0.0 if crossing is None else crossing.false_alarm_rate,
        evidence={**more, **(evidence or {})},
        next=next,
    )


def rejects_engine(rows: Rows) -> bool:
    """True where tokens are of the trainer's distribution rather than of the recorded one: the product of p / q over
    them is above exp(``NATS``), which has a chance of exp(-``NATS``) under the recorded one, whatever the two are.
    """
    return -float(rows.sums["diff"].sum()) > NATS


def as_trainer(rows: Rows) -> bool:
    """True where tokens are of the trainer's distribution though the engine recorded another: of the two they are of
    the trainer's, and -log p is the entropy on average, to within a quarter of the gap or three standard deviations of
    what is sampled from it. At another temperature it is off by sqrt(V) or more of gaps.
    """
    excess = ratio_of_sums(rows.sums["excess"], rows.sums["judged"])
    gap = ratio_of_sums(rows.sums["abs"], rows.sums["tokens"])
    spread = math.sqrt(float(rows.sums["varentropy"].sum())) / max(float(rows.sums["judged"].sum()), 1.0)
    return rejects_engine(rows) and abs(excess) < max(gap / 4, 3 * spread)


def side_of(rows: Rows) -> list[str]:
    """``engine-above`` or ``engine-below`` as a kind of evidence, where nearly all tokens beyond rounding are likelier
    to the engine, or less likely.
    """
    low, high = float(rows.sums["low"].sum()), float(rows.sums["high"].sum())
    if low + high < FEWEST_TOKENS:
        return []
    share = high / (low + high)
    return ["engine-above"] if share > ONE_SIDE else ["engine-below"] if share < 1 - ONE_SIDE else []


def is_greedy(rows: Rows) -> bool:
    """True if it was declared that the likeliest token is taken: nothing is sampled then."""
    return rows.declared("temperature") == 0 or rows.declared("top_k") == 1


def declared_kinds(rows: Rows) -> list[str]:
    """Settings of the sampler that were declared and change its distribution, as kinds of evidence."""
    temperature, top_p, top_k, min_p = (rows.declared(name) for name in ("temperature", "top_p", "top_k", "min_p"))
    kinds: list[str] = []
    if isinstance(temperature, int | float) and temperature != 1:
        kinds.append("declared-temperature")
    cuts = isinstance(top_p, int | float) and 0 < top_p < 1
    if cuts or any(isinstance(value, int | float) and value > 0 for value in (top_k, min_p)):
        kinds.append("declared-cut")
    if any(rows.declared(name) for name in WORDS_LEFT_OUT):
        kinds.append("declared-words")
    penalties = {name: rows.declared(name) for name in NO_PENALTY}
    if any(isinstance(value, int | float) and value != NO_PENALTY[name] for name, value in penalties.items()):
        kinds.append("declared-penalty")
    return kinds


def times_text(ratio: float) -> str:
    """A ratio to two digits, as people write it: 270, not 2.7e+02."""
    return f"{float(f'{ratio:.2g}'):,.12g}"


def ratio_of_sums(part: Floats, whole: Floats) -> float:
    """The sum of one over that of the other; NaN for nothing."""
    total = float(whole.sum())
    return float(part.sum()) / total if total > 0 else float("nan")


def span(run_steps: Ints) -> str:
    """``step 3`` or ``steps 3-90``."""
    first, last = int(run_steps.min()), int(run_steps.max())
    return f"step {first}" if first == last else f"steps {first}-{last}"
