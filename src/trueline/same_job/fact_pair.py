"""A fact that two trainings tell otherwise."""

from __future__ import annotations

from dataclasses import dataclass

ABSENT = "nothing of the kind"


@dataclass(frozen=True, slots=True)
class FactPair:
    """A fact ``name`` that two Runs say in other words or with other numbers: the sentence of each."""

    name: str
    run: str
    ref: str

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "run": self.run, "ref": self.ref}
