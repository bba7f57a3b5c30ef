"""How many healthy trainings show what of a fact may be unusual."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trueline.schema.text.words import counted

TABLE = "base_rates.toml"
"""Beside this file. `python -m benchmarks.facts` measures and writes it."""
MOST = 0.05
"""What a larger share of healthy trainings shows is not unusual."""


@dataclass(frozen=True, slots=True)
class BaseRate:
    """``showing`` of the healthy ``trainings`` whose Run tells the fact show the mark. ``at_most`` is the upper end of
    the one-sided 95 % interval of Clopper and Pearson (Biometrika 26, 1934) of that share.
    """

    trainings: int
    showing: int
    at_most: float

    @property
    def words(self) -> str:
        """``of 140 healthy trainings 3 show this``."""
        showing = f"{self.showing or 'none'} {'shows' if self.showing == 1 else 'show'}"
        return f"of {counted(self.trainings, 'healthy training')} {showing} this"

    def to_json(self) -> dict[str, Any]:
        return {"trainings": self.trainings, "showing": self.showing, "at_most": self.at_most}

    @property
    def share(self) -> float:
        """Of the trainings that show it, 0 without any."""
        return self.showing / self.trainings if self.trainings else 0.0

    @property
    def is_unusual(self) -> bool:
        return self.trainings > 0 and self.showing <= MOST * self.trainings


@cache
def base_rates() -> Mapping[str, BaseRate]:
    """Base rates by the name of the mark."""
    rows = tomllib.loads(Path(__file__).with_name(TABLE).read_text(encoding="utf-8"))
    return {name: BaseRate(**row) for name, row in rows.items()}
