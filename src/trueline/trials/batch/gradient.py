"""The law that a gradient is the derivative of its loss: as the weights move, the loss changes by what it says.

Weights move by plus and minus a·s·d, where s is the root mean square of their parameter and d is 1 or -1 for each. Then
(L(+a) - L(-a)) / 2a is the slope of the loss in that direction, up to a term with a², and the gradient g says that it
is the sum of g·s·d. Of slopes at a and a/2, (4·half - whole) / 3 has no such term (Richardson), and what it changes by
with a/2 and a/4 bounds what is left.

Two directions are looked at. *Along* the gradient d is its sign: a part of it that is too small or too large shows
most. *Across* it d is drawn at random: the slope then has the standard deviation |g·s| over draws, and what is wrong
shows whatever it is like.

Letters: P parameters in the order in which their modules are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.trials.batch.first_steps import FirstStep, losses_apart
from trueline.trials.batch.laws import COARSE, LIMIT, LawJudgement

Direction = Literal["along", "across"]

STEPS: Mapping[Direction, float] = {"along": 2.0**-8, "across": 2.0**-5}
"""a at first, where in `studies/laws/derivatives.md` rounding and bending explain about as much."""
FACTOR = 8.0
"""By so much a is changed once where they explain too much."""

BENDS = 2.0
"""The limit on what is left of bending, of what the last halving of a changed: of a smooth loss that is a fifteenth."""
JUMPS = 4.0
"""What the even part of the loss is off from a·a, where it jumps as experts are chosen, counts so many times: it is one
draw of how large such jumps are."""
FACTORS = (0.8, 1.25)
"""One number between these is no scale that anybody means."""

_HINTS = (
    "Look there, or in what is called between, for a backward of its own (`autograd.Function`, a custom kernel), "
    "`detach`, `no_grad`, `.data`, `.item()`, a reentrant checkpoint of inputs without gradients, or a gather "
    "without a backward.",
    "By design it is so with straight-through estimators, reversed gradients, and losses whose targets or ratios "
    "are the model's own, detached (PPO at its first step, BYOL, Q-learning without a target network).",
)
_FACTOR_HINTS = (
    "If that is no loss scale and no sum over ranks that is meant, look for a division by micro-batches, tokens or "
    "ranks that is missing or made twice.",
)

Moved = Callable[[Direction, float, Sequence[int]], FirstStep]
"""The first step with the parameters at some places moved by so much; raises ``Undecided``."""


@dataclass(frozen=True)
class Slopes:
    """The slope by the gradient for each parameter: ``names`` [P], their ``positions`` in the job, the slope in either
    direction, and ``size_P``, the standard deviation of that across.
    """

    names: Sequence[str]
    positions: Sequence[int]
    slope_P: Mapping[Direction, np.ndarray]
    size_P: np.ndarray

    @classmethod
    def from_step(cls, base: FirstStep) -> Slopes | None:
        """The slopes of a loss that is the mean over ranks; None where ranks do not have the same parameters, or no
        gradient.
        """
        slopes_by_rank = [facts["slopes"] for facts in base.facts]
        names, positions = ([entry[key] for entry in slopes_by_rank[0]] for key in ("name", "place"))
        if any([entry["name"] for entry in rank_slopes] != names for rank_slopes in slopes_by_rank):
            return None
        share, along, across, size = (
            np.array([[entry[key] for entry in rank] for rank in slopes_by_rank])
            for key in ("share", "along", "across", "size")
        )
        if not size.any():
            return None
        slope_P: Mapping[Direction, np.ndarray] = {
            "along": (share * along).sum(0),
            "across": (share * across).sum(0),
        }
        return cls(names, positions, slope_P, np.sqrt((share * size**2).sum(0)))


@dataclass(frozen=True)
class _MeasuredSlope:
    """The slope that was measured and what the gradient says, with what explains how far they may be apart."""

    measured: float
    claimed: float
    size: float
    loss_noise: float
    weight_noise: float
    bend: float

    @property
    def noise(self) -> float:
        return self.loss_noise + self.weight_noise

    @property
    def tolerance(self) -> float:
        return self.tolerance_at(1.0)

    def tolerance_at(self, factor: float) -> float:
        """The tolerated distance of the slope from ``factor`` times that of the gradient. Weights are rounded where
        they move, by a share of the loss's own slope: of a gradient that is too long by some factor, that share is too.
        """
        return self.loss_noise + factor * self.weight_noise + BENDS * self.bend

    def differs(self, factor: float = 1.0) -> bool | None:
        """Return whether the slope is not ``factor`` times that of the gradient; None where that cannot be told."""
        tolerance = self.tolerance_at(factor)
        is_apart = abs(self.measured - factor * self.claimed) > tolerance
        return None if tolerance > COARSE * max(factor * self.size, abs(self.measured)) else is_apart

    def share(self, part: float) -> str:
        return f"{part / max(self.size, abs(self.measured)):.1e}"


def judge_gradient(base: FirstStep, nudged: FirstStep, moved: Moved) -> LawJudgement:
    """Judge whether the gradient is that of the loss, and of which parameters it is not. ``nudged``: as ``base``, with
    each weight moved by one unit roundoff.
    """
    slopes = Slopes.from_step(base)
    if slopes is None:
        why = "no parameter of a module that is called has a gradient"
        return LawJudgement("gradient", None, f"gradient: not looked at, as {why}.", is_looked_at=False)
    agreements: list[str] = []
    bends = False
    # along first: it takes no draw, and shows a gradient of the wrong length most
    for direction in STEPS:
        weights = _MovedWeights(base, nudged, slopes, moved, direction)
        whole = weights.whole()
        differs = whole.differs()
        if differs is None:
            bends = bends or BENDS * whole.bend > whole.noise
            continue
        if not differs:
            agreements.append(f"{whole.share(abs(whole.measured - whole.claimed))} {direction} it")
        elif (factor := weights.common_factor()) is not None:
            says = f"it is {factor} times that of the losses' mean over ranks, in all parameters alike."
            return LawJudgement("gradient", True, f"gradient: {says}", _FACTOR_HINTS)
        else:
            says = _broken(slopes.names, *weights.narrowed(), whole, direction)
            return LawJudgement("gradient", False, f"gradient: {says}", _HINTS)
    if agreements:
        says = f"as the weights move, the loss changes as it says (apart by {' and '.join(agreements)})."
        return LawJudgement("gradient", True, f"gradient: {says}")
    why = "bends or jumps too much as they move" if bends else "is rounded too coarsely"
    return LawJudgement("gradient", None, f"gradient: the slope along the weights cannot be told, as the loss {why}.")


@dataclass(frozen=True)
class _Factor:
    """The gradient as a multiple of the loss's own, and the share of it (0-1) by which the measurement may be off."""

    times: float
    off_rel: float

    def __str__(self) -> str:
        # the last digits hang on the order in which a processor adds
        return f"{self.times:.4g} (to within {self.off_rel:.2g} of it)"


class _MovedWeights:
    """Runs the job with weights moved in one direction."""

    def __init__(self, base: FirstStep, nudged: FirstStep, slopes: Slopes, moved: Moved, direction: Direction) -> None:
        self._base, self._slopes, self._moved, self._direction = base, slopes, moved, direction
        self._unit = float(base.fact("unit")) or UNIT_ROUNDOFF["float32"]
        self._rounding = LIMIT * max(losses_apart(base.losses, nudged.losses), self._unit)
        self._step = STEPS[direction]

    def whole(self) -> _MeasuredSlope:
        """The slope for all parameters; at another a than the first where it can be told there only."""
        slope = self._at_three(0, len(self._slopes.names))
        if slope.differs() is None:
            # a longer step drowns rounding, a shorter one bends less
            self._step *= FACTOR if slope.noise > BENDS * slope.bend else 1 / FACTOR
            slope = self._at_three(0, len(self._slopes.names))
        return slope

    def common_factor(self) -> _Factor | None:
        """The gradient as a multiple of the slope, where that is one number for the first half of all parameters and
        for the second.
        """
        num = len(self._slopes.names)
        halves = [self._at_two(first, end) for first, end in ((0, num // 2), (num // 2, num))]
        if any(slope.differs() is not True for slope in halves) or not all(slope.claimed for slope in halves):
            return None
        factor = sum(slope.claimed * slope.measured for slope in halves) / sum(slope.claimed**2 for slope in halves)
        if factor <= 0 or FACTORS[0] < factor < FACTORS[1] or any(slope.differs(factor) for slope in halves):
            return None
        tolerance = sum(abs(slope.claimed) * slope.tolerance_at(factor) for slope in halves)
        return _Factor(1 / factor, tolerance / sum(slope.claimed**2 for slope in halves) / factor)

    def narrowed(self) -> tuple[int, int]:
        """From which to before which parameter it differs: by halves, the later of which is looked at, as what is wrong
        at one place is wrong in the gradients of all in front of it. What the later half does not differ by, the other
        does.
        """
        first, end = 0, len(self._slopes.names)
        while end - first > 1:
            middle = (first + end) // 2
            # from the back: a wrong backward spoils the gradients of all in front of it
            later = self._at_two(middle, end).differs()
            if later is None:
                break
            first, end = (middle, end) if later else (first, middle)
        return first, end

    def _at_three(self, first: int, end: int) -> _MeasuredSlope:
        steps = [self._step / divisor for divisor in (1, 2, 4)]
        ends = [self._ends(step, first, end) for step in steps]
        whole, half, quarter = (_slope(*two_losses, step) for two_losses, step in zip(ends, steps, strict=True))
        coarser, finer = (4 * half - whole) / 3, (4 * quarter - half) / 3
        _, of_half, of_quarter = (ahead + back for ahead, back in ends)
        jump = JUMPS * abs(of_quarter - of_half / 4) / (2 * steps[-1])
        return self._measured_slope(finer, first, end, bend=max(abs(coarser - finer), jump))

    def _at_two(self, first: int, end: int) -> _MeasuredSlope:
        """The slope from fewer runs, with a bound on bending that is too wide."""
        half, quarter = (_slope(*self._ends(step, first, end), step) for step in (self._step / 2, self._step / 4))
        finer = (4 * quarter - half) / 3
        return self._measured_slope(finer, first, end, bend=abs(quarter - finer))

    def _measured_slope(self, measured: float, first: int, end: int, *, bend: float) -> _MeasuredSlope:
        claimed = float(self._slopes.slope_P[self._direction][first:end].sum())
        size = float(np.linalg.norm(self._slopes.size_P[first:end]))
        of_loss = self._rounding * float(np.abs(self._base.losses).sum()) / len(self._base.facts)
        of_weights = LIMIT * self._unit * size  # a weight that is moved is rounded
        shortest = self._step / 4
        size = size if self._direction == "across" else claimed
        return _MeasuredSlope(measured, claimed, size, of_loss / shortest, of_weights / shortest, bend)

    def _ends(self, step: float, first: int, end: int) -> tuple[float, float]:
        """The increase of the loss ahead and back of the weights, averaged over ranks."""
        positions = self._slopes.positions[first:end]
        moved = [self._moved(self._direction, sign * step, positions) for sign in (1, -1)]
        ahead, back = (
            float((step_there.losses - self._base.losses).sum()) / len(self._base.facts) for step_there in moved
        )
        return ahead, back


def _slope(ahead: float, back: float, step: float) -> float:
    return (ahead - back) / (2 * step)


def _broken(names: Sequence[str], first: int, end: int, whole: _MeasuredSlope, direction: Direction) -> str:
    says = f"it is not that of the loss: as the weights move {direction} it, the loss changes otherwise than it says "
    says += f"(by {whole.share(abs(whole.measured - whole.claimed))} of it; rounding and curvature explain "
    says += f"{whole.share(whole.tolerance)})."
    if (first, end) == (0, len(names)):
        return says
    where = names[first] if end - first == 1 else f"one of {names[first]} … {names[end - 1]}"
    return f"{says} It is wrong in {where}{', and right in all behind it' if end < len(names) else ''}."
