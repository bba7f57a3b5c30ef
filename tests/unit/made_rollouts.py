"""Runs of rollouts that are drawn from distributions that are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gallery.rollouts.drawn import Made

import trueline

Change = Callable[[dict[str, Any]], None]


def recorded(folder: Path, made: Made, *, steps: int = 6, change: Change | None = None, **sampled: Any) -> str:
    """The path of a Run of ``steps`` steps, each ``change``d before it is recorded."""
    out = str(folder / "run")
    for step in range(steps):
        batch = made.batch(**sampled)
        if change is not None:
            batch["step"] = step
            change(batch)
            del batch["step"]
        assert trueline.rl.record(step, out=out, **batch)
    trueline.rl.close()
    return out


def codes(path: str) -> dict[str, Any]:
    """Warnings and errors by code."""
    return {each.code: each for each in trueline.check(path).findings if each.is_grave}
