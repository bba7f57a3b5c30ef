"""What differs between two jobs: one fact of each, how likely it explains other numbers, and why it may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trueline.same_job.vocabulary import Starts
from trueline.schema.finding import Severity
from trueline.store.reader import Run

TELLING = 40
"""From here on a difference is a warning: it changes the loss or the update itself. What is below (order of sums,
kernels, libraries below the framework) is information, and explains differences of the size of rounding only."""
UNSET = "not set"
NONE = "none"
"""What a model has of what the other one has, and it has not."""
AS_IN_REF = "as in the reference"
"""The value of the reference, where it is not of a kind that can be written."""


def divided_alike(one: Run, other: Run) -> bool:
    """Whether both Runs divide the work between ranks and micro-batches in one way, so that a rank's first batch and
    its parameters may be compared.
    """
    sides: list[tuple[str, int, list[float]]] = []
    for run in (one, other):
        micro_TN, measured_TN = run.pivot("num_micro")
        first = np.where(measured_TN[:1], micro_TN[:1], 1.0).ravel().tolist()
        sides.append((run.manifest.adapter, run.world_size, first))
    return sides[0] == sides[1]


def cast_otherwise(one: Run, other: Run) -> bool:
    """Whether a parameter has another dtype in the other Run, so that digests of weights, and of inputs that were cast
    like them, differ though the values may be the same.
    """
    if not one.env or not other.env:
        return False
    envs = [run.env[min(run.env)] for run in (one, other)]
    mine, theirs = (dict(zip(env.params, env.param_dtypes, strict=False)) for env in envs)
    return any(mine[name] != theirs[name] for name in mine.keys() & theirs.keys())


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. ``code`` is that of the finding it becomes, ``topic`` groups it, ``name`` is its term or fact,
    and ``says`` that in words; ``run`` and ``ref`` are both values as text, ``run_where`` and ``ref_where``
    where they were set; ``likely`` is 0 to 100, ``starts`` what it changes first.
    """

    code: str
    topic: str
    name: str
    says: str
    run: str
    ref: str
    likely: int
    starts: Starts
    run_where: str = ""
    ref_where: str = ""
    note: str = ""

    @property
    def severity(self) -> Severity:
        """``warning`` or ``info``: a difference alone is no error."""
        return "warning" if self.likely >= TELLING else "info"

    @property
    def line(self) -> str:
        """The difference in part of a sentence; of a model names are listed, without a verb."""
        if self.ref == AS_IN_REF:
            return f"{self.says}: {self.run}"
        if self.topic == "model":
            return f"{self.says}: {self.run}, and {self.ref} in the reference"
        if UNSET in (self.run, self.ref):
            sides = ("not set", f"is {self.ref}") if self.run == UNSET else (self.run, "is not set")
            return f"{self.says} is {sides[0]}, and {sides[1]} in the reference"
        return f"{self.says} is {self.run} and not {self.ref}"

    @property
    def claim(self) -> str:
        """The difference in a sentence of its own, up to its full stop, that names the reference."""
        told = "" if self.line.endswith("in the reference") else AS_IN_REF
        return f"{self.line} {'compared with the reference' if self.ref == AS_IN_REF else told}".strip()

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract."""
        return {
            "code": self.code,
            "severity": self.severity,
            "topic": self.topic,
            "name": self.name,
            "says": self.says,
            "run": self.run,
            "ref": self.ref,
            "likely": self.likely,
            "changes_first": self.starts,
            "run_where": self.run_where,
            "ref_where": self.ref_where,
            "note": self.note,
        }
