"""What replays say of who is at fault: one device, two, a rank whichever device it has, or no one in particular.

A replay that ran on a device which is at fault differs with a rate that is integrated over, as in ``chance``; one that
did not differs hardly ever. Where it is the software, all of them differ with one rate. Which rank was the first to
differ speaks for the device that it ran on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trueline.trials.frame.chance import Counts, log_if_absent, log_if_present
from trueline.trials.vote.groups import Group

_DEVICE, _PAIR, _RANK = 0.45, 0.05, 0.25
"""Prior probability of one device, of two, and of one rank; the rest is of no one in particular."""
_ASTRAY = 0.05
"""Probability that the rank which is seen first is not the one at fault: what a rank sends wrong differs elsewhere."""


@dataclass(frozen=True)
class Replay:
    """One run of the job: on which devices, whether it ``differs`` from the majority, and the place in ``devices`` of
    the one whose rank was the first to, where it was one.
    """

    devices: Group
    differs: bool
    first: int | None = None


@dataclass(frozen=True)
class Suspect:
    """Who is at fault: ``devices``; else the ``rank``; else neither is."""

    devices: tuple[str, ...] = ()
    rank: int | None = None

    def __str__(self) -> str:
        """The suspect as an answer names it."""
        if self.devices:
            return " + ".join(f"device {name}" for name in self.devices)
        return "any device" if self.rank is None else f"rank {self.rank}"


def ranked(replays: Sequence[Replay], devices: Sequence[str]) -> list[tuple[Suspect, float]]:
    """All suspects with their probability, likeliest first."""
    logs = {suspect: math.log(prior) + _log_odds(suspect, replays) for suspect, prior in _suspects(replays, devices)}
    # from the largest, as logs of many replays underflow
    high = max(logs.values())
    total = sum(math.exp(log - high) for log in logs.values())
    chances = [(suspect, math.exp(entry - high) / total) for suspect, entry in logs.items()]
    return sorted(chances, key=lambda chance: -chance[1])


def _suspects(replays: Sequence[Replay], devices: Sequence[str]) -> Iterator[tuple[Suspect, float]]:
    """The suspects that may explain the replays that differ, with their prior."""
    met = {name for replay in replays if replay.differs for name in replay.devices}
    names = [name for name in devices if name in met]
    size = len(replays[0].devices)
    for name in names:
        yield Suspect((name,)), _DEVICE / len(devices)
    for pair in itertools.combinations(names, 2):
        yield Suspect(pair), _PAIR / math.comb(len(devices), 2)
    for rank in range(size if size > 1 else 0):
        yield Suspect(rank=rank), _RANK / size
    yield Suspect(), 1 - _DEVICE - _PAIR - (_RANK if size > 1 else 0)


def _log_odds(suspect: Suspect, replays: Sequence[Replay]) -> float:
    """Log probability of the replays, up to a constant that is the same for all suspects."""
    present, absent, log_first = Counts(), Counts(), 0.0
    for replay in replays:
        at = [position for position, name in enumerate(replay.devices) if name in suspect.devices]
        if not suspect.devices or at:
            present = present.with_one(replay.differs)
        else:
            absent = absent.with_one(replay.differs)
        if replay.first is not None:
            at = at if suspect.rank is None else [suspect.rank]
            log_first += _log_place(at, replay.first, len(replay.devices))
    return log_if_present(present) + log_if_absent(absent) + log_first


def _log_place(at: Sequence[int], first: int, size: int) -> float:
    """Log probability that the rank at ``first`` is the one that is seen first, where those in ``at`` are at fault
    (none in particular where that is empty).
    """
    if not at:
        return -math.log(size)
    return math.log((1 - _ASTRAY) / len(at) * (first in at) + _ASTRAY / size)
