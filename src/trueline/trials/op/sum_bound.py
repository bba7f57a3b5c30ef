"""The most that a sum is off which is added up in float32 and rounded once, whatever the order of its terms.

An element y of unit roundoff v is off by v |y| for the rounding, and by n u S: n terms, u = 2^-24, S the sum of their
magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2). S is not recorded: u S is what the
exact result changes by when each input moves by u of itself, at most over a move of all magnitudes upwards, which of a
plain sum gives it exactly, and moves of random signs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trueline.trials.op import recalled

U = 2.0**-24
"""Unit roundoff of float32."""
MOVES = 3


@dataclass(frozen=True)
class SumBound:
    """Of an output: how many ``terms`` an element has at most, and the L2 norm of n u S over that of the output."""

    terms: int
    summing_rel: float

    def rel(self, unit: float) -> float:
        """The bound on the relative L2 error of an output with this unit roundoff."""
        return unit + self.summing_rel

    def says(self, bound: float) -> str:
        """What a sum in float32 would be off by, as part of a sentence."""
        return (
            f"adding up {self.terms:,} terms in float32 makes at most {bound:.2g} (one rounding, and n u S: n terms of "
            "magnitude S in all, u = 2^-24), so it is added up in fewer bits"
        )


def sum_bounds(call: recalled.Call, inputs: recalled.Values, exact: recalled.Values) -> dict[str, SumBound]:
    """The bound of each output that has fewer elements than the largest input. Raises ``recalled.Impossible``."""
    largest = max((x.numel() for x in inputs.values()), default=0)
    slots = [slot for slot, x in exact.items() if 0 < x.numel() < largest and x.is_floating_point()]
    moves = {slot: torch.zeros_like(exact[slot]) for slot in slots}
    for number in range(MOVES if slots else 0):
        generator = torch.Generator().manual_seed(number)
        moved = recalled.outcomes(
            {**call, "autocast": None}, {k: _moved(x, generator, number) for k, x in inputs.items()}, exact=True
        )
        for slot in slots:
            torch.maximum(moves[slot], (moved[slot] - exact[slot]).abs().nan_to_num(0.0), out=moves[slot])
    bounds: dict[str, SumBound] = {}
    for slot in slots:
        norm = float(exact[slot].norm())
        # an index may name one row all the time
        indices = max((x.numel() for x in inputs.values() if not x.is_floating_point()), default=0)
        terms = max(largest // exact[slot].numel(), indices)
        if norm:
            bounds[slot] = SumBound(terms, terms * float(moves[slot].norm()) / norm)
    return bounds


def _moved(x: Tensor, generator: torch.Generator, number: int) -> Tensor:
    if not x.is_floating_point():
        return x
    wide = x.cpu().double()
    if not number:
        return wide + U * wide.abs()
    return wide * (1 + U * (torch.randint(0, 2, x.shape, generator=generator) * 2 - 1))
