"""A fact of a training, and what is asked for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
    ``text`` says, as JSON has them.
    """

    name: str
    area: Area
    text: str
    value: Any = None

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "area": self.area, "text": self.text, "value": self.value}


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that a Run may tell. ``find`` returns the sentence and its numbers; it raises ``CannotTell`` with the
    reason where the Run does not tell it, and returns None where the job has nothing of the kind.
    """

    name: str
    area: Area
    words: str
    find: Callable[[Run], tuple[str, Any] | None]
