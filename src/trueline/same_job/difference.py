"""Difference between two jobs in one fact: both values, and how likely it explains other numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trueline.same_job.vocabulary import Starts
from trueline.schema.finding import Severity
from trueline.store.reader import Run

TELLING = 40
"""Least likelihood of a warning: the difference changes the loss or the update itself. Below it (order of sums,
kernels, libraries below the framework) a difference is information, and explains rounding only."""
UNSET = "not set"
UNKNOWN_EFFECT = "not in the vocabulary: what it does is not known"
"""Note of a difference in an option that is no term, and is not known to be harmless."""
NO_PART = "none"
"""Value of a model that lacks every part the other model has."""
AS_IN_REF = "as in the reference"
"""Value of the reference where it cannot be written."""


def is_divided_alike(run: Run, ref: Run) -> bool:
    """Tell whether both Runs divide the work between ranks and micro-batches in one way.

    Only then may a rank's first batch and its parameters be compared.
    """
    divisions: list[tuple[str, int, list[float]]] = []
    for side in (run, ref):
        micro_TN, measured_TN = side.pivot("num_micro")
        first_micro_N = np.where(measured_TN[:1], micro_TN[:1], 1.0).ravel().tolist()
        divisions.append((side.manifest.adapter, side.world_size, first_micro_N))
    return divisions[0] == divisions[1]


def has_other_dtypes(run: Run, ref: Run) -> bool:
    """Tell whether a parameter has another dtype in the reference.

    Then digests of weights, and of inputs that were cast like them, differ though the values may be equal.
    """
    if not run.env or not ref.env:
        return False
    envs = [side.env[min(side.env)] for side in (run, ref)]
    run_dtypes, ref_dtypes = (dict(zip(env.params, env.param_dtypes, strict=False)) for env in envs)
    return any(run_dtypes[name] != ref_dtypes[name] for name in run_dtypes.keys() & ref_dtypes.keys())


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference.

    ``code`` is that of the finding it becomes, ``topic`` groups it, ``name`` is its term or fact, ``says`` the name in
    words. ``run`` and ``ref`` are the values as text; ``run_where`` and ``ref_where`` are the lines that set them.
    ``likely`` is 0 to 100; ``starts`` is the first quantity that changes.
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
    def is_unknown(self) -> bool:
        """True of an option of which is not known what it does."""
        return self.note == UNKNOWN_EFFECT

    @property
    def severity(self) -> Severity:
        """``warning`` or ``info``: a difference alone is no error."""
        return "warning" if self.likely >= TELLING else "info"

    @property
    def line(self) -> str:
        """Difference as part of a sentence; names of a model are listed without a verb."""
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
        """Difference as a whole sentence without full stop, which names the reference."""
        ending = "" if self.line.endswith("in the reference") else AS_IN_REF
        return f"{self.line} {'compared with the reference' if self.ref == AS_IN_REF else ending}".strip()

    @property
    def remedy(self) -> str:
        """What to do, so that it is gone."""
        where = f" ({self.run_where})" if self.run_where else ""
        if AS_IN_REF in (self.run, self.ref) or self.topic in ("model", "data"):
            return f"Make {self.says} as in the reference{where}, and run the job again: {self.line}."
        value = "leave it out" if self.ref == UNSET else f"set it to {self.ref}"
        return f"{self.says}{where}: {value}, as in the reference, and run the job again."

    def to_json(self) -> dict[str, Any]:
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
