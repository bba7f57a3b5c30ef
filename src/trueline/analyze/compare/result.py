"""The result of comparing two runs: a judgement for each pair of values, findings, and values without a twin."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trueline.schema.fact import fact
from trueline.schema.finding import Finding
from trueline.schema.site import Site
from trueline.schema.text.shown import Shown

SCHEMA = 1
"""Version of the document that ``Comparison.to_json`` makes; raised when a field changes meaning."""

Judgement = Literal["equal", "within", "beyond", "propagated", "not-comparable"]
JUDGEMENTS: tuple[Judgement, ...] = ("equal", "within", "beyond", "propagated", "not-comparable")
"""``equal``: the same bits, as far as was recorded. ``within``: rounding explains the difference. ``beyond``: neither
rounding nor the inputs explain it. ``propagated``: rounding does not explain it, but the inputs differ too.
"""


@fact()
class ComparedRow:
    """One value of a run and its twin of the reference; ``site`` or ``ref_site`` is None where one has no twin.

    ``measured`` and ``expected`` are relative L2 differences (0 equal, 1 as large as the value): the measured one, a
    lower estimate where only statistics were recorded, and the one that rounding explains; ``times`` is their quotient.
    ``how`` the difference was measured: ``tensor``, ``fingerprint``, ``statistics``, or '' where it was not. ``place``
    is the zero-based index in the order of execution. ``details`` has further numbers of the difference.
    """

    step: int
    rank: int | None
    place: int
    site: str | None
    ref_site: str | None
    judgement: Judgement
    kind: str
    api: str
    dtype: str
    ref_dtype: str
    shape: tuple[int, ...]
    measured: float | None = None
    expected: float | None = None
    times: float | None = None
    how: str = ""
    note: str = ""
    where: str = ""
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StepSummary:
    """How one step of one rank (None: merged) compares. ``loss_rel`` is the relative difference of the loss.

    ``detailed`` False: the step was not compared value by value, as it is equal or enough other steps were.
    """

    step: int
    rank: int | None
    counts: Mapping[Judgement, int]
    first_site: str | None = None
    largest_times: float | None = None
    loss_rel: float | None = None
    detailed: bool = True


@dataclass(frozen=True)
class Comparison(Shown):
    """A run compared with a reference. ``rows`` are in the order of steps, ranks and execution; ``missing`` counts
    values without a twin by reason; ``first`` is the row to blame, None where there is none.
    """

    run: str
    ref: str
    findings: tuple[Finding, ...]
    rows: Sequence[ComparedRow]
    steps: Sequence[StepSummary]
    first: ComparedRow | None = None
    missing: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> Counter[str]:
        """Values by judgement."""
        return sum((Counter[str](step.counts) for step in self.steps), Counter[str]())

    @property
    def exit_code(self) -> int:
        """0 the same, or rounding explains it; 1 different; 3 no pair of values could be compared."""
        if any(finding.severity != "info" for finding in self.findings):
            return 1
        return 0 if self.counts["equal"] + self.counts["within"] else 3

    def _title(self) -> str:
        counts = ", ".join(f"{self.counts[name]:,} {name}" for name in JUDGEMENTS if self.counts[name])
        site = None if self.first is None else self.first.site or self.first.ref_site
        first = "" if site is None else f"; the first that rounding does not explain is {site}"
        return f"'{self.run}' compared with '{self.ref}': {counts or 'nothing was compared'}{first}"

    def _columns_shown(self) -> Mapping[str, Sequence[Any]]:
        names = ("step", "rank", "site", "judgement", "measured", "expected", "times", "how", "dtype", "note")
        return {name: [getattr(row, name) for row in self.rows] for name in names}

    def _notes(self) -> Sequence[str]:
        return (*(f"{finding.severity} {finding.code}: {finding.claim}" for finding in self.findings), *self.notes)

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract."""
        return {
            "schema": SCHEMA,
            "run": self.run,
            "ref": self.ref,
            "findings": [finding.to_json() for finding in self.findings],
            "first": None if self.first is None else _plain(self.first),
            "counts": {name: self.counts.get(name, 0) for name in JUDGEMENTS},
            "missing": dict(self.missing or {}),
            "steps": [{**asdict(step), "counts": dict(step.counts)} for step in self.steps],
            "rows": [_plain(row) for row in self.rows],
            "notes": list(self.notes),
        }


def command_for(run: str, site: Site) -> str:
    """The command that prints the call of a value with its call stack."""
    words = ["trueline", "info", run, "--site", f"{site.phase}/{site.name}#{site.call}:*"]
    return shlex.join([*words, "--step", str(site.step), "--rank", str(site.rank), "--stacks"])


def _plain(row: ComparedRow) -> dict[str, Any]:
    document = asdict(row)
    return {**document, "shape": list(row.shape), "details": dict(row.details or {})}
