"""Learning rates at a restart, beside those of the last update before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trueline.judge.series.command_rates import rates_of_command
from trueline.laws.restarts.taken_over import TakenOver
from trueline.store.reader import Run

ROUNDING = 1e-9
"""Share of a learning rate that roundings of its schedule in float64 may be."""

Rates = np.ndarray
"""[G] float64, by parameter group."""


@dataclass(frozen=True, eq=False)
class RatesAtStart:
    """``before`` and ``after`` [G] are those of the update of ``step_before``, the last one before a start or where its
    weights are from, and of its first one. ``as_left`` is
    whether they differ by no more than those of two updates elsewhere, which a schedule moves, and ``is_meant`` whether
    the command or a schedule explains the difference; ``went_back`` whether the schedule that was seen is at an
    earlier step than it had been, with the rates that the job began with.
    """

    step_before: int
    before: Rates
    after: Rates
    as_left: bool
    is_meant: bool
    went_back: bool


def rates_at(run: Run, start: TakenOver) -> RatesAtStart | None:
    """None where one of them is unknown, or the optimizer has other groups.

    Meant are those that are as left; and rates that they never were, which the command asks for, or to which they fall,
    as by a schedule that is stepped once an epoch.
    """
    rows = {step: rates_G for (step, _), rates_G in run.lists("lr", ranks=[start.rank]).items()}
    if start.is_killed:
        return None
    # From the checkpoint of an earlier step on, updates are made again, and had a rate already.
    reference = start.at if start.repeats and start.at < start.step else start.step - 1
    before_G, after_G = rows.get(reference), rows.get(start.step)
    if before_G is None or after_G is None or len(before_G) != len(after_G) or not len(before_G):
        return None
    rounding = ROUNDING * float(np.abs(before_G).max())
    elsewhere = [
        _distance(rates_G, rows[step - 1])
        for step, rates_G in rows.items()
        # the next one too: a schedule that computes its rates from the step puts a first one that was wrong right
        if step - start.step not in (0, 1) and step - 1 in rows and len(rows[step - 1]) == len(rates_G)
    ]
    earlier = [rates_G for step, rates_G in sorted(rows.items()) if step < start.step and len(rates_G) == len(after_G)]
    falls = bool(np.all(after_G <= before_G))
    asked = [rate for _, rate in rates_of_command(run.manifest.command)]
    is_asked = any(_distance(after_G, np.full_like(after_G, rate)) <= rounding for rate in asked)
    is_again = any(_distance(rates_G, after_G) <= rounding for rates_G in earlier)
    moves_little = _distance(before_G, after_G) <= max(elsewhere, default=0.0) + rounding
    is_meant = moves_little or ((falls or is_asked) and not is_again)
    is_first = _distance(earlier[0], after_G) <= rounding
    return RatesAtStart(reference, before_G, after_G, moves_little, is_meant, is_first and _goes_back(run, start))


def _distance(a_G: Rates, b_G: Rates) -> float:
    return float(np.abs(a_G - b_G).max(initial=0.0))


def _goes_back(run: Run, start: TakenOver) -> bool:
    """True where the schedule is at an earlier step at its first update that is seen than it last was before."""
    epochs = {step: row for (step, _), row in run.lists("schedule_epochs", ranks=[start.rank]).items() if len(row)}
    before, after = ([step for step in epochs if (step < start.step) is is_before] for is_before in (True, False))
    return bool(before and after) and int(np.max(epochs[min(after)])) < int(np.max(epochs[max(before)]))
