"""`clean.json`: up to which step a Run is known to be clean, written while it is judged beside the job, for who keeps
checkpoints.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from trueline.schema.text.documents import decode, encode
from trueline.store import file_names
from trueline.store.log.durable import replace_file

VERSION = 1
"""Of the document; one of another version is not read."""


@dataclass(frozen=True)
class OpenFault:
    """An error or warning that the Run has: its ``code``, the first ``step`` of its evidence (None where it is of
    none), its sentence, and what a healthy job shows it with at most (0.0 of a contradiction, None where unknown).
    """

    code: str
    severity: str
    step: int | None
    says: str
    false_alarm_bound: float | None


@dataclass(frozen=True)
class Clean:
    """Up to which step the Run at ``run`` is known to be clean.

    ``step`` is the last one before the evidence of all ``faults``, or the last that was judged where there are none;
    None where none is. Steps after ``judged_to`` were not judged yet. ``false_alarms`` is how many healthy steps of
    10,000 all checks together may accuse; ``not_looked_at`` says what no check looked at, and why, so that clean means
    no more than it does.
    """

    run: str
    step: int | None
    judged_to: int | None
    false_alarms: float
    faults: tuple[OpenFault, ...] = ()
    not_looked_at: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """True while an error is open: a checkpoint of now may hold what it did."""
        return any(fault.severity == "error" for fault in self.faults)

    def covers(self, num_updates: int) -> bool | None:
        """Whether weights after so many updates are clean, which is shown by the step that began with them; None where
        that was not judged yet.
        """
        if self.step is not None and num_updates <= self.step:
            return True
        return False if self.faults else None

    def __str__(self) -> str:
        if self.judged_to is None:
            return "No step was judged yet."
        if not self.faults:
            return f"Clean to step {self.step}, the last that was judged."
        first = self.faults[0]
        clean = "No step is known to be clean" if self.step is None else f"Clean to step {self.step}"
        return f"{clean}: {first.severity} {first.code}: {first.says}"

    def to_json(self) -> dict[str, Any]:
        """The document without its checksum."""
        return {"version": VERSION, **asdict(self), "is_open": self.is_open}


def write_clean(path: str, clean: Clean) -> None:
    """Put ``clean`` into the Run at ``path``; nothing where it cannot be written."""
    with contextlib.suppress(OSError):
        replace_file(os.path.join(path, file_names.CLEAN), encode(clean.to_json()))


def remove_clean(path: str) -> None:
    """A start of the job has not been judged: what an earlier one left in the Run at ``path`` says nothing of it."""
    with contextlib.suppress(OSError):
        os.remove(os.path.join(path, file_names.CLEAN))


def read_clean(path: str) -> Clean | None:
    """What the Run at ``path`` says; None where there is nothing, or not what was written."""
    try:
        with open(os.path.join(path, file_names.CLEAN), "rb") as file:
            document, sealed = decode(file.read())
        return _clean(document) if sealed and document.get("version") == VERSION else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _clean(document: Mapping[str, Any]) -> Clean:
    faults = tuple(OpenFault(**cast(dict[str, Any], fault)) for fault in document["faults"])
    names = ("run", "step", "judged_to", "false_alarms")
    return Clean(*(document[name] for name in names), faults, tuple(document["not_looked_at"]))
