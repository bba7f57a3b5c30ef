"""When an e-detector alarmed, since when it had been winning, and until when.

T steps, B bets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trueline.judge.stats.exchangeability import Floats, log_detector, log_detectors
from trueline.judge.stats.tails import evidence_start


@dataclass(frozen=True)
class Alarm:
    """Indices of steps: the evidence starts at ``first``, crosses the threshold at ``crossed`` and is highest at
    ``last``. ``log_height`` is the natural log of the detector there, ``threshold`` that of the height it alarms at.
    ``first`` is where the bet starts to win that is highest at ``crossed``.
    """

    first: int
    crossed: int
    last: int
    log_height: float
    threshold: float

    @property
    def window(self) -> range:
        """The indices from ``first`` to ``last``."""
        return range(self.first, self.last + 1)


def alarm_of(log_e_TB: Floats, *, threshold: float) -> Alarm | None:
    """The alarm of the detector averaged over the bets, or None where it stays below ``threshold`` (natural log)."""
    if not len(log_e_TB):
        return None
    height_T = log_detector(log_e_TB)
    above = np.flatnonzero(height_T >= threshold)
    if not len(above):
        return None
    crossed, last = int(above[0]), int(np.argmax(height_T))
    detectors_TB = log_detectors(log_e_TB[: last + 1])  # of single bets: their average says when, not which bet
    return Alarm(
        first=_winning_since(log_e_TB, detectors_TB, crossed),
        crossed=crossed,
        last=last,
        log_height=float(height_T[last]),
        threshold=threshold,
    )


def steps_needed(threshold: float, *, nats: float, num_bets: int) -> int:
    """The fewest steps in which a detector could alarm that wins at most ``nats`` a step with any of its bets."""
    return math.ceil((threshold + math.log(num_bets)) / nats) if nats > 0 else 0


def _winning_since(log_e_TB: Floats, detectors_TB: Floats, index: int) -> int:
    """The index of the step since which the bet that is highest at ``index`` has been winning."""
    return evidence_start(log_e_TB[:, int(np.argmax(detectors_TB[index]))], index)
