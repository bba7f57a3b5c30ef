"""All checks on one Run."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trueline.analyze.evidence import capitalized, data_parallel_ranks, ranks_text
from trueline.analyze.registry import Check, installed_checks
from trueline.schema.errors import AlignmentError, CannotTell, RunError
from trueline.schema.finding import Finding, by_weight
from trueline.store.reader import Run

_log = logging.getLogger(__name__)

SCHEMA = 1
"""Of the document that ``CheckReport.to_json`` makes; raised when a field changes meaning."""


@dataclass(frozen=True)
class NotRun:
    """A check that could not say anything, and why."""

    check: str
    why: str


@dataclass(frozen=True)
class CheckReport:
    """What all checks say about one Run; findings are sorted, errors first. ``notes`` tell what is wrong with the
    Run itself.
    """

    run: str
    findings: tuple[Finding, ...]
    checks_run: tuple[str, ...]
    checks_not_run: tuple[NotRun, ...]
    notes: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether anything is more than an info."""
        return any(finding.severity != "info" for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0 nothing found, 1 found, 3 no check at all could run."""
        return 1 if self.found else 0 if self.checks_run else 3

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract."""
        return {
            "schema": SCHEMA,
            "run": self.run,
            "findings": [finding.to_json() for finding in self.findings],
            "checks_run": list(self.checks_run),
            "checks_not_run": [{"check": entry.check, "why": entry.why} for entry in self.checks_not_run],
            "notes": list(self.notes),
        }


COMPARE_CODES = (
    *("input-differs", "weight-differs", "structure-differs", "dtype-differs", "first-divergence"),
    *("explained-by-rounding", "optimizer-differs", "site-missing"),
)
"""What a comparison with a reference looks for."""


def check(run: str | os.PathLike[str] | Run, *, ref: str | os.PathLike[str] | Run | None = None) -> CheckReport:
    """Run every installed check on a Run, or a path of one, and compare it with ``ref`` where that is given. Raises
    ``RunError`` where there is no Run to read.

    Findings that live checks left while the job ran are included.
    """
    opened = run if isinstance(run, Run) else Run(run)
    reference = ref if ref is None or isinstance(ref, Run) else Run(ref)
    findings: list[Finding] = list(opened.live_findings)
    codes: list[str] = []
    not_run: list[NotRun] = []
    for each in installed_checks():
        try:
            findings += each.find(opened)
        except CannotTell as error:
            not_run.append(NotRun(each.code, str(error)))
        except Exception as error:
            not_run.append(_failed(each, error))
        else:
            codes.append(each.code)
    if reference is not None:
        from trueline.analyze.compare import compare  # a check without a reference need not wait for it

        try:
            findings += compare(opened, reference).findings
        except (CannotTell, AlignmentError, RunError) as error:
            not_run += [NotRun(code, str(error)) for code in COMPARE_CODES]
        else:
            codes += COMPARE_CODES
    return CheckReport(
        run=os.fspath(opened.path),
        findings=tuple(sorted(findings, key=by_weight)),
        checks_run=tuple(codes),
        checks_not_run=tuple(not_run),
        notes=tuple(_notes(opened)),
    )


def _failed(failed: Check, error: Exception) -> NotRun:
    """A check that is at odds with the data, or broken, must not take the others with it."""
    if isinstance(error, RunError):
        return NotRun(failed.code, str(error))
    _log.warning("check %s failed", failed.code, exc_info=error)
    return NotRun(failed.code, f"it failed with {type(error).__name__}: {error}; please report this")


def _notes(run: Run) -> list[str]:
    return [*run.problems, *run.manifest.notes, *_early_ends(run)]


def _early_ends(run: Run) -> list[str]:
    """A line on workers whose rows end before those of the others: they died, or stopped."""
    ranks = data_parallel_ranks(run)
    last = {rank: _last_step(run, rank) for rank in ranks}
    latest = max((step for step in last.values() if step is not None), default=None)
    if latest is None:
        return []
    early: dict[int | None, list[int]] = {}
    for rank, step in last.items():
        if step is None or step < latest:
            early.setdefault(step, []).append(rank)
    return [_early_end(ended, step, latest) for step, ended in early.items()]


def _early_end(ranks: Sequence[int], step: int | None, latest: int) -> str:
    verb = "has" if len(ranks) == 1 else "have"
    rows = "no rows" if step is None else f"rows up to step {step} only"
    return f"{capitalized(ranks_text(ranks))} {verb} {rows}, others go on to step {latest}: killed, or still writing."


def _last_step(run: Run, rank: int) -> int | None:
    _, measured = run.pivot("rank")
    rows = np.flatnonzero(measured[:, run.ranks.index(rank)])
    return int(run.steps[rows[-1]]) if len(rows) else None
