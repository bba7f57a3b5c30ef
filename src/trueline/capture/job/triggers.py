"""Faults that this rank detects, sent to all ranks with the sums, and the recordings that they start on all of them.

Whatever decides here went through a sum, so all ranks decide from the same numbers in the same order. What one rank
alone can see (its own result of a reduction) travels as a bit in its row of the scalars of its next sum.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from trueline.schema.law import LIVE_SIGNS, LiveSign, facts_of, live_codes

MAX_RECORDINGS = 3
"""Recordings that findings may start in one job: what comes back again and again is seen well enough in three."""
SPIKE_TIMES = 2.5
"""Times the largest of the last ``SPIKE_AMONG`` norms that a norm must reach to start a recording: what the check
of jumps asks for at least, of the level. A choice, for a recording that nobody needed costs three steps."""
SPIKE_AMONG = 64
"""Norms that a norm is compared with, as many as that check takes the spread from; it takes half of them to begin."""


@dataclass(frozen=True)
class Detection:
    """A finding of ``code`` at ``step`` on these members of the team, known to all ranks before ``from_step``; the
    latest step before it that was looked at, and had none, is ``clean``.
    """

    code: str
    step: int
    workers: tuple[int, ...]
    from_step: int
    clean: int | None = None


class Triggers:
    """Collects what this rank detects, and receives what all ranks have."""

    def __init__(self) -> None:
        self._signs: set[LiveSign] = set()
        self._before: set[LiveSign] = set()
        self._detections: list[Detection] = []
        self._clean: list[int] = []
        self._norms: deque[float] = deque(maxlen=SPIKE_AMONG)
        self.started = 0
        """Recordings that were started."""
        self.ends = 0
        """The step after the last that the latest recording takes."""
        self.news_at = -1
        """The latest step before which all ranks came to know of a finding."""

    def add(self, signs: set[LiveSign]) -> None:
        """This rank has detected these; the next sum sends them to the others."""
        self._signs |= signs

    def look(self, host: Mapping[str, Any], *, scaled: bool) -> None:
        """Note what a sampled step's own numbers show on this rank: NaN, infinity, a jump of its gradient's norm."""
        self._signs |= nonfinite_in(host, scaled=scaled)
        norm2_P = host.get("local_norm2")
        norm = math.nan if norm2_P is None else math.sqrt(float(norm2_P.clamp(min=0).sum()))  # -1: not seen
        if not math.isfinite(norm):
            return
        if 2 * len(self._norms) >= SPIKE_AMONG and norm > SPIKE_TIMES * max(self._norms):
            self._signs.add("jump")
        self._norms.append(norm)

    def take_bits(self) -> float:
        """What this rank detected since the last call: one bit a sign, in the order of ``LIVE_SIGNS``."""
        bits = sum(1 << bit for bit, sign in enumerate(LIVE_SIGNS) if sign in self._signs)
        self._signs.clear()
        return float(bits)

    def receive(self, bits_N: Sequence[float], *, step: int, from_step: int) -> None:
        """Take the bits of every worker from the sum of ``step``. What was set in the sum before as well is no news."""
        at = {sign: _workers(bits_N, bit) for bit, sign in enumerate(LIVE_SIGNS)}
        now = {sign for sign, workers in at.items() if workers}
        for sign, code in live_codes().items() if now - self._before else ():
            if sign in now - self._before:
                back = 1 + facts_of(code).sums_late
                clean = self._clean[-back] if len(self._clean) >= back else None
                self._detections.append(Detection(code, step, at[sign], from_step, clean))
        self._clean = self._clean if now else [*self._clean[-1:], step]
        self._before = now

    def start(self, step: int, *, when: Sequence[str], num_steps: int) -> Detection | None:
        """The detection that starts a recording of ``num_steps`` steps at ``step``, if any. Ask before every step."""
        due = [detection for detection in self._detections if detection.from_step <= step]
        if not due:
            return None
        self.news_at = step
        self._detections = [detection for detection in self._detections if detection.from_step > step]
        trigger = next((detection for detection in due if detection.code in when), None)
        if trigger is None or step < self.ends or self.started >= MAX_RECORDINGS:
            return None
        self.started += 1
        self.ends = step + num_steps
        return trigger


def seen_in_row(columns: Mapping[str, Any], *, lossy: bool, by_hand: bool) -> set[LiveSign]:
    """Signs of what a row's reduction columns contradict (``shared_columns.columns``), by the floors they bring.

    A hook that is lossy on purpose, or a reduction by the user's own code, is judged only by what replicas then use.
    """
    wrong = any(r > f for r, f in _against_floors(columns, "group_reduce_residual", "group_reduce_floor"))
    differs = [r > f for r, f in _against_floors(columns, "group_used_residual", "group_used_floor")]
    is_local = [r <= f for r, f in _against_floors(columns, "group_used_local", "group_used_floor")]
    unreduced = any(a and o for a, o in zip(differs, is_local, strict=False))
    signs: set[LiveSign] = {"unreduced"} if unreduced else set()
    if (wrong and not lossy and not by_hand) or (any(differs) and not unreduced):
        signs.add("mismatch")
    return signs


def _against_floors(columns: Mapping[str, Any], name: str, floor: str) -> Iterator[tuple[float, float]]:
    """(value, floor) of each group; what was not measured is below every floor."""
    values, floors = columns.get(name), columns.get(floor)
    if values is None or floors is None:
        return iter(())
    pairs = zip(cast(Sequence[float | None], values), cast(Sequence[float], floors), strict=True)
    return ((0.0 if value is None else value, limit) for value, limit in pairs)


def _workers(bits_N: Sequence[float], bit: int) -> tuple[int, ...]:
    return tuple(index for index, bits in enumerate(bits_N) if int(bits) >> bit & 1)


def nonfinite_in(host: Mapping[str, Any], *, scaled: bool) -> set[LiveSign]:
    """Signs of a step whose loss or local gradient is NaN or infinite. ``scaled``: under float16 autocast a gradient
    may be, as a gradient scaler looks for its scale.
    """
    trained_M3, norm2_P = host.get("loss_trained"), None if scaled else host.get("local_norm2")
    losses = [host["loss"]] if "loss" in host else [] if trained_M3 is None else trained_M3[:, 0].tolist()
    bad = not all(math.isfinite(loss) for loss in losses)
    bad = bad or (norm2_P is not None and not bool(np.isfinite(norm2_P.numpy()).all()))
    return {"nonfinite"} if bad else set()
