"""Decides which steps are sampled, from the Plan, the step number and sums that all ranks share: all ranks take part in
a step or none.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from trueline.schema.plan import EARLY_STEPS, SHORT_S, Plan

ALLOWANCE_S = 2.0
"""Time that watching may use for sampling every step before the budget applies: most faults show at the start, short
runs are sampled completely, and in a run of five minutes it is less than 1 %.
"""

DENSE, EARLY_FRAC = 64, 0.01
"""Steps that are sampled at least before the interval may grow, if they are not short (``SHORT_S``), and the share of
the time of ``EARLY_STEPS`` that watching may use then, so that these together stay near 1.02 times as long.
"""

EARLY_INTERVAL = 4
"""The first ``EARLY_STEPS`` of a job are sampled at least so often, at any cost: a fault that begins in the middle of
them needs these 75 samples, as two workers can be distinguished after 29 at best (threshold e^20 of bets that win 2 at
most).
"""

MAX_INTERVAL = 100
"""The longest interval, even where a budget asks for a longer one; the manifest then says so."""
BEAT = 10
"""In steps that the Plan's ``steps`` leave out, ranks only exchange whether the Plan has changed, every so many steps:
a sum of a few numbers, which takes effect at the next one."""

REDUCED_FIRST = 4
"""Sampled steps at the start in which the result of the reduction is measured separately."""

REDUCED_EVERY = 8
"""After that every so many, and whenever the step before is in doubt: in the others the gradients that the optimizer
receives stand for it, at two thirds of the cost."""

NUM_COSTS = 16
"""Latest measurements of cost whose median counts."""

DIGESTED_FIRST = 16
"""Steps, from the first and from any at which all ranks learn of a finding, before each of which replicas are digested.
"""

LOOKS_AGAIN = 8
"""Times in a job that a finding makes digests frequent again: one that comes and goes must not do so for ever."""


@dataclass(frozen=True)
class Decision:
    """The interval to follow, the one that the budget asks for by itself, and whether steps that are not sampled
    cost more than the budget already.
    """

    interval: int
    by_budget: int
    floor: bool = False


class Schedule:
    """Answers, per optimizer step, whether gradients, parameters and sketches are taken.

    With ``Plan.every`` the interval is fixed. Without, it is 1 until ``ALLOWANCE_S`` is spent and then follows the
    measured cost: the smallest interval E with (plain + (sampled - plain) / E) / step time <= budget, in seconds of
    ``OwnTime``, the worst rank deciding, and ``EARLY_INTERVAL`` at most at first. A new interval takes effect two
    samples after the step that it was computed from, when every rank has that step's sum. ``first`` is the job's first
    step: not 0 where it was started again.
    """

    def __init__(self, plan: Plan, *, first: int = 0) -> None:
        self._plan = plan
        self.first = max(plan.steps[0], first)
        """The first step that is watched."""
        self.interval = _fixed(plan) or 1
        self._dense_since = self.first
        self._looks_left = LOOKS_AGAIN
        self._next = self.first
        self._window = -1
        self._changes: list[tuple[int, int]] = []
        self._plain: list[float] = []
        self._sampled: list[float] = []
        self._times: list[float] = []
        self._total_s = 0.0
        self._followed_from = 0

    def follow(self, plan: Plan, *, step: int) -> None:
        """Take up another Plan before ``step``, on all ranks alike. Which steps are watched stays: a gap in the samples
        that workers consumed would look like a fault. What cost was measured under the Plan before is forgotten, as
        ranks may have read different many of its sums; an interval by budget stays until the next decision.
        """
        self._plan = plan.model_copy(update={"steps": self._plan.steps})
        self.interval = _fixed(plan) or self.interval
        self._next, self._followed_from = max(step, self.first), step
        self._changes, self._plain, self._sampled, self._times = [], [], [], []
        self._total_s = 0.0

    def beats(self, step: int) -> bool:
        """True if ranks exchange in this step, which the Plan does not watch, only whether the Plan has changed."""
        return not self.watches(step) and step % BEAT == 0

    def watches(self, step: int) -> bool:
        """True if the Plan watches this step at all."""
        first, end = self._plan.steps
        return step >= first and (end is None or step < end)

    def samples(self, step: int) -> bool:
        """True if gradients are measured at this step. Ask once a step, in order."""
        if not self.watches(step) or step < self._next:
            return False
        while self._changes and self._changes[0][0] <= step:
            self.interval = self._changes.pop(0)[1]
        self._next = step + self.interval
        return True

    def digests_params(self, step: int) -> bool:
        """True if parameters and buffers are digested before the update of this step: ``DIGESTED_FIRST`` steps, then at
        gaps of an eighth of the steps gone by, as a power of two, and at last every ``params_every``. So a difference
        is dated to an eighth of its age, and no date is vaguer than ``params_every``.
        """
        age = step - self._dense_since
        rarest = self._plan.params_every
        gap = 1 if age < DIGESTED_FIRST else 1 << (age // 8).bit_length() - 1
        gap = rarest if self._plan.bits_alone else gap  # those have them at every step
        due = (gap < rarest and age % gap == 0) or (step - self._plan.steps[0]) % rarest == 0
        return self.watches(step) and due

    def look_again(self, step: int) -> None:
        """Digest often from ``step`` on, as at the start, because all ranks have received a finding before it."""
        if step - self._dense_since >= DIGESTED_FIRST and self._looks_left > 0:
            self._looks_left -= 1
            self._dense_since = step

    def keeps_sketches(self, step: int) -> bool:
        """True if a sampled step's sketch is kept (N x N cosines): the first sample in each window of
        ``matrix_every``.
        """
        window = (step - self._plan.steps[0]) // self._plan.matrix_every
        due = window > self._window
        self._window = max(window, self._window)
        return due

    def counts(self, step: int) -> bool:
        """True if the interval depends on the sum of ``step``: not where a later Plan is in force."""
        return _fixed(self._plan) is None and step >= self._followed_from

    def spent(self, *, plain_s: float, sampled_s: float, step_s: float) -> None:
        """Take the time that watching used in the latest plain and sampled step (0: none yet), of the worst
        rank, and the step's own time.
        """
        self._total_s += sampled_s
        for values, value in ((self._plain, plain_s), (self._sampled, sampled_s), (self._times, step_s)):
            if value > 0:
                values.append(value)
            del values[:-NUM_COSTS]

    def decide(self, step: int, *, interval: int) -> Decision | None:
        """The interval to hold from two samples after ``step`` (which was sampled at ``interval``): what the budget
        asks for, or the widest that is allowed early.

        None where the Plan fixes it. Must be called for the same steps, with the same history, on all ranks.
        """
        if _fixed(self._plan) is not None:
            return None
        step_s = statistics.median(self._times) if self._times else 0.0
        spread = step - self.first >= DENSE and step_s >= SHORT_S
        if self._total_s < (min(ALLOWANCE_S, EARLY_FRAC * EARLY_STEPS * step_s) if spread else ALLOWANCE_S):
            return None
        sampled = statistics.median(self._sampled)
        plain = statistics.median(self._plain) if self._plain else 0.0  # no step was left out yet, which would show it
        room = self._plan.budget * step_s - plain
        by_budget = MAX_INTERVAL if room <= 0 else min(max(math.ceil((sampled - plain) / room), 1), MAX_INTERVAL)
        holds_from = step + 2 * interval
        next_interval = min(by_budget, EARLY_INTERVAL) if holds_from < self.first + EARLY_STEPS else by_budget
        self._changes.append((holds_from, next_interval))
        return Decision(next_interval, by_budget, floor=room <= 0)


def _fixed(plan: Plan) -> int | None:
    """The interval that a Plan fixes: of one that takes bits alone the longest, so that little else is taken."""
    return MAX_INTERVAL if plan.bits_alone else plan.every


class Recheck:
    """Answers, per sampled step, whether the result of the reduction is looked at, besides what the optimizer receives.

    Where that is the mean of the workers' gradients, the reduction did what it must. Where it is their mean times one
    factor, the user may have clipped it, or the reduction have scaled it: then only looking at it shows which.
    """

    def __init__(self) -> None:
        self._count = -1
        self._doubt = False
        self._straight = True

    def due(self) -> bool:
        """True if to look at this sampled step. Ask once for each, in order."""
        self._count += 1
        return self._doubt or self._count < REDUCED_FIRST or self._count % REDUCED_EVERY == 0

    def update(self, *, straight: bool, mean: bool) -> None:
        """Take the result of a step: whether the optimizer received the ``mean`` gradient times some factor, and
        whether that factor was one (``straight``).
        """
        self._doubt = not mean or (self._straight and not straight)
        self._straight = straight
