"""A cause as it describes itself: what a Run that has it shows, and what it cannot show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Strength = Literal["always", "mostly", "often"]
Effort = Literal["look", "step", "run"]

CHANCES: dict[Strength, float] = {"always": 0.95, "mostly": 0.8, "often": 0.5}
"""The probability that a Run with the cause shows a sign, given that it was looked for. Asserted, not fitted: 0.95 and
0.8 are the prior means of an implied sign; ``benchmarks/gallery`` counts how often they lead to the right cause.
"""
EFFORTS: tuple[Effort, ...] = get_args(Effort)
"""What it takes to settle a cause, the cheapest first: to look at what is there, a few steps once more, a job anew."""
KIND_ALWAYS = 0.99
"""Probability of the kind of a finding where it is always the same: what a check says of it is typed and exact."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that may be wrong with a training.

    ``shows`` are the signs (``signs.py``) with how surely it brings them: codes of findings, what kind of finding it
    is (``reduction-mismatch/scaled``, or ``a/x|y`` for either), who, when and how the job was run. ``needs`` are codes
    of which at least one must be found where any of their checks could judge; ``excludes`` are signs that cannot be
    together with it. ``settles`` is the command or edit that would prove or refute it, at that ``effort``. ``slug`` is
    the title of its block, ``manual`` what that says of it.
    """

    shows: Mapping[str, Strength]
    settles: str
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    effort: Effort = "step"
    slug: str = field(default="")
    manual: str = field(default="", repr=False)

    def chance(self, sign: str) -> float:
        """The probability of ``sign``, one of those it shows."""
        strength = self.shows[sign]
        return KIND_ALWAYS if strength == "always" and "/" in sign else CHANCES[strength]

    @property
    def says(self) -> str:
        """The cause in a sentence."""
        return self.manual.partition("\n")[0].rstrip(".")

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of findings that it brings."""
        return tuple(dict.fromkeys(sign.partition("/")[0] for sign in self.shows if ":" not in sign))
