"""What is recorded by both tools, and what is asked of ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from benchmarks.recording.tools import FAR


@dataclass(frozen=True)
class Part:
    """One thing to record, how each tool is told, and the shares of msProbe's that are aimed at (None: no aim)."""

    name: str
    msprobe: dict[str, Any]
    trueline: dict[str, Any]
    time_share: Fraction | None = None
    bytes_share: Fraction | None = None
    rounds_share: float = 1.0
    bulky: dict[str, tuple[str, ...]] = field(default_factory=dict)


TENTH = Fraction(1, 10)
MODULES = {"task": "statistics", "level": "L0"}
OPS = {"task": "statistics", "level": "L1"}
MIX = {"task": "statistics", "level": "mix"}

RECORDED: tuple[Part, ...] = (
    Part("structure, modules and ops", {**MIX, "task": "structure"}, {"preset": "mix", "depth": "structure"}),
    Part("statistics, modules", MODULES, {"preset": "modules", "depth": "stats"}, Fraction(1, 3), TENTH),
    Part("statistics, ops", OPS, {"preset": "ops", "depth": "stats"}, Fraction(1, 4), TENTH),
    Part("statistics, modules and ops", MIX, {"preset": "mix", "depth": "stats"}, Fraction(1, 4), TENTH),
    Part(
        "fingerprints, modules and ops",
        {**MIX, "statistics": {"summary_mode": "md5"}},
        {"preset": "mix", "depth": "fingerprint"},
        Fraction(1, 5),
    ),
    Part(
        "tensors, modules and ops",
        {**MIX, "task": "tensor"},
        {"preset": "mix", "depth": "tensor", "max_bytes": 2**60},
        Fraction(1, 4),
        Fraction(1, 2),
        rounds_share=0.5,
        bulky={"msprobe": ("msprobe/step*",), "trueline": ("run/tensors/**/*.safetensors",)},
    ),
)

NOT_SELECTED = Part(
    "not selected", {**MIX, "step": [FAR]}, {"preset": "mix", "depth": "stats", "steps": (FAR, FAR + 1)}
)
"""Both tools attached, at steps that they are not told to record."""
