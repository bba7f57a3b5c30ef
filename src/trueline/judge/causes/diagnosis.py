"""From a Run to the causes of what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trueline.judge.actions import Action, actions_of
from trueline.judge.causes.trial_signs import read_trial
from trueline.judge.causes.verdicts import CauseVerdict
from trueline.judge.check_run import CheckReport, check
from trueline.schema.finding import documents_of
from trueline.store.reader import Run

SCHEMA = 1
"""Version of the document that ``Diagnosis.to_json`` makes; raised when a field changes meaning."""


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """Findings of the checks on a Run, and the causes of each incident."""

    report: CheckReport

    def __repr__(self) -> str:
        return repr(self.report)

    @property
    def verdicts(self) -> tuple[CauseVerdict, ...]:
        """The causes of each incident, the answer first, then what is nearly as likely, then what is excluded."""
        return self.report.causes

    @property
    def exit_code(self) -> int:
        """Exit code of ``check``: 0 nothing found and enough was judged, 1 found, 3 cannot tell."""
        return self.report.exit_code

    @property
    def actions(self) -> tuple[Action, ...]:
        """Next actions on all incidents: what settles the cause of each, the gravest first."""
        answers = [self.report.cause(index) for index in range(len(self.report.incidents))]
        advice = [line for answer in answers for line in answer.next]
        advice += [
            f"What this cause is, and what looks like it: `trueline explain {answer.cause} --json`."
            for answer in answers
            if answer.is_known
        ]
        return actions_of([*advice, *self.report.mended]) if advice else self.report.actions

    def of(self, incident: int) -> tuple[CauseVerdict, ...]:
        """The Verdicts on one incident, the answer first."""
        return tuple(verdict for verdict in self.verdicts if verdict.incident == incident)

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract."""
        return {
            "schema": SCHEMA,
            **self.report.head(),
            "actions": [action.to_json() for action in self.actions],
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "incidents": self.report.incident_documents(),
            "findings": documents_of(self.report.findings),
            "judged": self.report.judged.to_json(),
            "next": list(self.report.next),
            "notes": list(self.report.notes),
        }


def diagnose(
    run: str | os.PathLike[str] | Run,
    *,
    ref: str | os.PathLike[str] | Run | None = None,
    trials: Sequence[str | os.PathLike[str]] = (),
    remembers: bool = True,
) -> Diagnosis:
    """Check a Run, or a path of one, with ``ref`` as ``check`` does, and name the cause of each incident; ``trials``
    are folders of trials about it, whose answers count; ``remembers`` as of ``check``. Raises ``RunError`` where there
    is no Run to read, ``InputError`` where there is no trial.
    """
    # Read before the check, which takes long: a folder that is no trial is said at once.
    answers = [(os.fspath(folder), read_trial(folder)) for folder in trials]
    report = check(run, ref=ref, remembers=remembers)
    codes = {report.findings[index].code for incident in report.incidents for index in incident.findings}
    notes = [
        f"The trial in {folder} counts for nothing here: "
        + ("it has no answer that tells causes apart." if sign is None else f"it is about {sign.code}, not found here.")
        for folder, sign in answers
        if sign is None or (sign.code and sign.code not in codes)
    ]
    signs = tuple(sign for _, sign in answers if sign is not None)
    return Diagnosis(replace(report, trials=signs, notes=(*report.notes, *notes)))
