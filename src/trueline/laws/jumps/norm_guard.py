"""Whether the norm of the gradient that an optimizer is about to use jumps by the law of `grad-spike`: what
``on_finding = "skip"`` asks before each update.
"""

from __future__ import annotations

import math
from collections import Counter, deque

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.judge.stats.next_spike import NextSpike
from trueline.laws.jumps.grad_spike import LEAST
from trueline.laws.jumps.run_series import MICRO_STEPS, RISE, log_level


class NormGuard:
    """The norms of the gradient so far, of all updates that were about to be made.

    ``false_alarms`` is the budget of the Plan; the share of `grad-spike` for the whole gradient is spent, a quarter:
    at 0.1 false alarms in 10,000 healthy steps one update in 400,000 is left out without a reason. Where `grad-spike`
    takes what recurs for usual, each of it is told here: what was left out is not what the training has seen. The past
    is forgotten where the learning rate rises at once or the number of passes changes for good, and a step with another
    number of passes is not judged, as `grad-spike` does it.
    """

    def __init__(self, false_alarms: float) -> None:
        self._series = NextSpike(log_level=log_level(AlarmBudget(false_alarms), "norm"), least=math.log(LEAST))
        self._rate = math.inf
        self._passes: deque[int] = deque(maxlen=MICRO_STEPS)
        self._usual = 0

    def why_not(self, norm: float, *, rate: float, passes: int) -> str:
        """Why an update with a gradient of this ``norm`` (L2, finite) at this learning ``rate``, after so many forward
        ``passes``, is not to be made; '' where nothing speaks against it.
        """
        self._passes.append(passes)
        usual = Counter(self._passes).most_common(1)[0][0]
        if usual != self._usual or rate > RISE * self._rate:
            self._series.forget()
        self._usual, self._rate = usual, rate
        if passes != usual or norm <= 0:
            return ""
        jump = self._series.add(math.log(norm))
        if jump is None:
            return ""
        low, high = math.exp(jump.level), math.exp(jump.value)
        return f"the norm of the gradient jumped from {low:.3g} to {high:.3g}, {jump.score:,.3g} times its usual spread"
