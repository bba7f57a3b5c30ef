"""Jumps over time as all findings report them: when, from what to what, whether it came back, how sure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import Floats
from trueline.judge.stats.peaks_over_threshold import STEPS_BEFORE, Spike, num_judged, stretches
from trueline.laws.jumps.run_series import WholeRun
from trueline.schema.errors import CannotTell

_MAX_SPIKES = 20
"""Spikes that the evidence of a Finding lists."""


def require_steps(log_T: Floats, series: WholeRun, noun: str) -> None:
    """Raise ``CannotTell`` where no step of the series has enough others before it to be judged."""
    if num_judged(log_T, series.starts):
        return
    measured, steps = int(np.count_nonzero(np.isfinite(log_T))), len(series.steps)
    if not measured:
        raise CannotTell(f"it needs {noun}, and no step of this Run has one of all workers")
    # steps before a start are not compared with those after
    pasts = stretches(len(log_T), series.starts)
    longest = max(int(np.count_nonzero(np.isfinite(log_T[begin:end]))) for begin, end in pasts)
    clause = f" with {noun} among its {steps}" if measured < steps else ""
    if len(pasts) > 1:
        # the verdict has what stands before the colon
        start = (
            f"the learning rate or the number of micro-batches jumps, last at step {int(series.steps[pasts[-1][0]])}"
        )
        clause = f" in one stretch: {f'of those with {noun}, and ' if measured < steps else ''}{start}"
    elif longest == STEPS_BEFORE:
        clause += " and none after them"
    raise CannotTell(
        f"it takes {STEPS_BEFORE} steps before one can be compared with them, and this Run has {longest}{clause}",
        reason="too-few-steps" if measured == steps or steps <= STEPS_BEFORE else "no-data",
    )


def jump_text(series: WholeRun, spikes: Sequence[Spike], *, verb: str = "jumped") -> str:
    """``jumped from 2.31 to 5.02 at step 412, 9.4 times its usual spread, and came back after step 431``, of the first
    one; how many follow, and when the last one was.
    """
    first = spikes[0]
    low, high = math.exp(first.level), math.exp(first.value)
    step, last = int(series.steps[first.first]), int(series.steps[first.last])
    ending = f"and came back after step {last}" if first.back else f"and had not come back by step {last}"
    ending = "for that step alone" if first.back and first.first == first.last else ending
    text = f"{verb} from {low:.3g} to {high:.3g} at step {step}, {first.score:,.3g} times its usual spread, {ending}"
    if len(spikes) == 1:
        return text
    count = "once" if len(spikes) == 2 else f"{len(spikes) - 1} times"
    return f"{text}; it {verb} {count} more, at step {int(series.steps[spikes[-1].first])}" + (
        " last" if len(spikes) > 2 else ""
    )


def surest(spikes: Sequence[Spike]) -> Spike:
    """The spike that is least probable in a healthy run."""
    return min(spikes, key=lambda spike: spike.log_p)


def evidence(series: WholeRun, spikes: Sequence[Spike]) -> dict[str, Any]:
    """The spikes as plain numbers, in order of time."""
    return {
        "num_spikes": len(spikes),
        "spikes": [
            {
                "step": int(series.steps[spike.first]),
                "peak_step": int(series.steps[spike.peak]),
                "last_step": int(series.steps[spike.last]),
                "level": math.exp(spike.level),
                "peak": math.exp(spike.value),
                "spreads": spike.score,
                "log_p": spike.log_p,
                "came_back": spike.back,
            }
            for spike in spikes[:_MAX_SPIKES]
        ],
    }
