"""A Finding: one measured fact that is not as it should be. Causes are not its business."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal, cast, get_args

Severity = Literal["error", "warning", "confirm", "info"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""The gravest first. The first two are faults; what is to ``confirm`` may be meant, and seldom is."""

WATCH_DEGRADED = "watch-degraded"
"""The code of what is wrong with the record and not with training: severity info, and less could be judged."""
PLAN_REFUSED = "plan-refused"
RECORDING_STARTED = "recording-started"
NO_UPDATE = "no-update"
UPDATE_SKIPPED = "update-skipped"
JOB_DIED = "job-died"
"""The code of a training that an exception ended, or that some of its ranks left without a word."""
UNUSUAL = "unusual"
"""The code of facts of a training that healthy ones seldom have."""
LIVE_CODES = {
    WATCH_DEGRADED: "A part of watching failed on a rank and was taken off; training goes on without it.\n\n"
    "Written while the job runs. What was not watched from there on is not judged: report the error that it names.",
    PLAN_REFUSED: 'A change of the Plan, or its `on_finding = "skip"`, was not taken up, for the reason that it '
    "names.\n\n"
    "Written while the job runs; the Plan in force stays, and updates are made as they come.",
    RECORDING_STARTED: "What the Plan's `when` waited for was detected, and recording began.\n\n"
    "Written while the job runs.",
    UPDATE_SKIPPED: 'An update was left out on all ranks, as the Plan\'s `on_finding = "skip"` asks: its gradient was '
    "not finite on a rank, or its norm jumped as `grad-spike` says.\n\n"
    "Written while the job runs, for each such update. The step has no number of its own in the Run, as one that a "
    "gradient scaler leaves out. A quarter of the Plan's `false_alarms` is spent on norms of a healthy training.",
    NO_UPDATE: "Backward passes were made, and no update: `optimizer.step()` was not called, so nothing is trained.\n\n"
    "Written as the job ends, unless an exception ended it or a GradScaler left out its updates. Some elements of some "
    "parameters are looked at as watching begins and as it ends: where they have changed, something else updates, and "
    "nothing is said.",
    JOB_DIED: "The job died: an exception ended the training on a rank, which is the first that raised, or ranks were "
    "killed while others ended as they should, or all of them were killed or left at once.\n\n"
    "Read from how each rank closed the Run, with the line of the user's own code. A job that was interrupted "
    "(KeyboardInterrupt), that the Plan stopped or that ended all at once without an exception was ended, and did not "
    "die, unless `trueline run` saw its command end by SIGKILL, by a fault (SIGSEGV) or with an exit code above 0, and "
    "had not been told to end it; one that still runs did neither.",
}
"""What is reported while the job runs, by no check: what each code means."""


LEAST_PROBABILITY = 1e-300
"""A bound on a probability that is smaller is stated as this: 0.0 is kept for evidence that is a contradiction."""


@dataclass(frozen=True, slots=True)
class Where:
    """Of the script the ``file`` and ``line`` to look at, and the ``rank`` with its ``host`` and ``device``; None where
    that is unknown, or where several ranks differ in it.
    """

    file: str | None = None
    line: int | None = None
    host: str | None = None
    rank: int | None = None
    device: str | None = None

    @property
    def code_line(self) -> str:
        """``train.py:24``, or '': the name of the file, as a screen has it."""
        return "" if self.file is None else f"{PurePath(self.file).name}:{self.line}"

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "host": self.host, "rank": self.rank, "device": self.device}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Where:
        """The inverse of ``to_json``; unknown keys are ignored, as those of a Finding are."""

        def text(key: str) -> str | None:
            return None if document.get(key) is None else str(document[key])

        def number(key: str) -> int | None:
            return None if document.get(key) is None else int(document[key])

        return cls(text("file"), number("line"), text("host"), number("rank"), text("device"))


@dataclass(frozen=True, slots=True)
class Finding:
    """What was measured, where, and what was expected there.

    ``ranks`` are global ranks, ascending. ``step_first`` is the optimizer step at which the evidence starts
    (not the one at which it crossed a line) and ``step_last`` the last one that shows it.
    ``sites`` are the most telling places, as ``str(Site)``. ``measured`` and ``expected`` share ``unit``;
    ``None`` means not measured. ``false_alarm_rate`` bounds the probability that a healthy run yields this
    Finding; 0.0 where the evidence is an exact contradiction.
    """

    code: str
    severity: Severity
    claim: str
    ranks: tuple[int, ...] = ()
    step_first: int | None = None
    step_last: int | None = None
    sites: tuple[str, ...] = ()
    measured: float | None = None
    expected: float | None = None
    unit: str = ""
    false_alarm_rate: float | None = None
    evidence: Mapping[str, Any] = field(default_factory=lambda: cast(dict[str, Any], {}))
    next: tuple[str, ...] = ()
    where: Where = Where()

    @property
    def is_grave(self) -> bool:
        """True of errors and warnings."""
        return self.severity in ("error", "warning")

    @property
    def manual(self) -> str:
        """What ``trueline explain`` takes: the code, of an unusual fact its id."""
        return self.id if self.code == UNUSUAL else self.code

    @property
    def id(self) -> str:
        """A name that stays the same while the Run grows: the code, and a digest of ranks, kind and first step. Of what
        is to confirm the code and the kind, which the next Run of the job has, too.
        """
        if self.severity == "confirm":
            kind = self.evidence.get("kind")
            return f"{self.code}.{kind}" if kind and isinstance(kind, str) else self.code
        about = repr((self.ranks, self.evidence.get("kind"), self.step_first))
        return f"{self.code}.{hashlib.blake2s(about.encode(), digest_size=4).hexdigest()}"

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract: plain lists, dicts, numbers and strings."""
        return {
            "code": self.code,
            "severity": self.severity,
            "claim": self.claim,
            "ranks": list(self.ranks),
            "step_first": self.step_first,
            "step_last": self.step_last,
            "sites": list(self.sites),
            "measured": self.measured,
            "expected": self.expected,
            "unit": self.unit,
            "false_alarm_rate": self.false_alarm_rate,
            "evidence": dict(self.evidence),
            "next": list(self.next),
            "where": self.where.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Finding:
        """The inverse of ``to_json``; unknown keys are ignored, so that older readers read newer findings.

        Raises ``KeyError`` for a key that every Finding has, ``ValueError`` or ``TypeError`` for what cannot be one.
        """
        if document["severity"] not in SEVERITIES:
            raise ValueError(f"'{document['severity']}' is no severity")

        def items(key: str) -> Sequence[Any]:
            return cast(Sequence[Any], document.get(key) or ())

        def number(key: str) -> float | None:
            value = document.get(key)
            return value if value is None or isinstance(value, int) else float(value)

        def step(key: str) -> int | None:
            return None if document.get(key) is None else int(document[key])

        return cls(
            code=str(document["code"]),
            severity=document["severity"],
            claim=str(document["claim"]),
            ranks=tuple(int(rank) for rank in items("ranks")),
            step_first=step("step_first"),
            step_last=step("step_last"),
            sites=tuple(str(site) for site in items("sites")),
            measured=number("measured"),
            expected=number("expected"),
            unit=str(document.get("unit") or ""),
            false_alarm_rate=number("false_alarm_rate"),
            evidence=dict(cast(Mapping[str, Any], document.get("evidence") or {})),
            next=tuple(str(line) for line in items("next")),
            where=Where.from_json(cast(Mapping[str, Any], document.get("where") or {})),
        )


def ids_of(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Names of findings of one document, each once: their ids, the second and later of one id with a number."""
    names = [finding.id for finding in findings]
    return tuple(
        name if names.index(name) == index else f"{name}.{names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    )


def documents_of(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Findings as a document has them, each with its name."""
    return [{"id": name} | finding.to_json() for name, finding in zip(ids_of(findings), findings, strict=True)]


def by_weight(finding: Finding) -> tuple[int, int, bool, str]:
    """Sort key: errors first, then the earliest evidence, then the code; dispersions, which say least of what to do,
    after other codes of the same step.
    """
    step = -1 if finding.step_first is None else finding.step_first
    return (SEVERITIES.index(finding.severity), step, finding.code.startswith("dispersion"), finding.code)


def columns_of(findings: Sequence[Finding]) -> dict[str, list[Any]]:
    """Findings as columns of a table, a row each: what a person reads of them."""
    names = ("severity", "code", "ranks", "step_first", "step_last", "claim", "measured", "expected", "unit", "next")
    plain = [finding.to_json() for finding in findings]
    return {name: [document[name] for document in plain] for name in names}
