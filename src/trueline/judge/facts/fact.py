"""A fact of a training, and what is asked for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trueline.judge.facts.base_rates import BaseRate, base_rates
from trueline.store.reader import Run

Area = Literal["data", "model", "loss", "update", "precision", "starts"]
AREAS: Mapping[Area, str] = {
    "data": "Data",
    "model": "Model",
    "loss": "Loss",
    "update": "Update",
    "precision": "Precision and randomness",
    "starts": "Starts",
}
"""What facts are about, in the order in which they are shown, and its heading."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One line on what a training did. ``name`` stays the same from version to version; ``value`` has the numbers that
    ``text`` says, as JSON has them. ``marks`` are sentences by the name of the mark that applies, whether or not that
    is unusual.
    """

    name: str
    area: Area
    text: str
    value: Any = None
    marks: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def unusual(self) -> Mapping[str, BaseRate]:
        """Base rates of those marks that few healthy trainings show."""
        rates = base_rates()
        return {name: rates[name] for name in self.marks if name in rates and rates[name].is_unusual}

    @property
    def line(self) -> str:
        """``text``, and how many healthy trainings show what is unusual of it; of several the smallest share."""
        rarest = min(self.unusual.values(), key=lambda rate: rate.share, default=None)
        return self.text if rarest is None else f"{self.text}; {rarest.words}"

    def to_json(self) -> dict[str, Any]:
        unusual = {name: rate.to_json() for name, rate in self.unusual.items()}
        head = {"name": self.name, "area": self.area, "text": self.text, "value": self.value}
        return head | {"marks": list(self.marks), "unusual": unusual}


@dataclass(frozen=True, slots=True)
class Mark:
    """What of a fact may be unusual: ``applies`` is true of the ``value`` of a fact that has it. Its ``name`` is a row
    of the table of base rates (``base_rates.toml``): without a row it marks nothing. ``says`` makes a sentence of the
    value where that of the fact does not stand by itself. Where one of the marks ``said_by`` is to be confirmed, that
    says it as well; what findings of checks say is declared with their codes (``Code.says``). ``advice`` is what to do
    where it is not meant.
    """

    name: str
    applies: Callable[[Any], bool]
    says: Callable[[Any], str] | None = None
    said_by: tuple[str, ...] = ()
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that a Run may tell. ``find`` returns the sentence and its numbers; it raises ``CannotTell`` with the
    reason where the Run does not tell it, and returns None where the job has nothing of the kind. ``words`` name it,
    ``marks`` are asked of its numbers.
    """

    name: str
    area: Area
    words: str
    find: Callable[[Run], tuple[str, Any] | None]
    marks: tuple[Mark, ...] = field(default=())
