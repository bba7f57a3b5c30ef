"""What `check` says of a Run that it does not say of another, and after how many steps it would have said it first."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trueline.judge.asking import ask_checks
from trueline.judge.check_run import CheckReport
from trueline.judge.registry import Check, installed_checks
from trueline.judge.series.iterations import parting_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.judged import NotRun
from trueline.store.reader import Run

Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Sighting:
    """A finding, and the least number of first steps of its Run of which `check` says it."""

    finding: Finding
    num_steps: int

    def to_json(self) -> Mapping[str, Any]:
        finding = self.finding
        facts = {"code": finding.code, "severity": finding.severity, "ranks": list(finding.ranks)}
        return {**facts, "steps": self.num_steps, "claim": finding.claim}


def key_of(finding: Finding) -> Key:
    """What a finding is about, whatever its numbers."""
    return finding.manual, finding.ranks


def noteworthy(findings: Sequence[Finding]) -> list[Finding]:
    """Errors and warnings, and what is to confirm."""
    return [finding for finding in findings if finding.severity != "info"]


def sightings_of(run: Run, report: CheckReport, usual: Collection[Key]) -> list[Sighting]:
    """Those of ``report`` whose key is not ``usual``: errors and warnings, or, where there are none, what is to
    confirm; the first first.
    """
    unusual = [finding for finding in noteworthy(report.findings) if key_of(finding) not in usual]
    unusual = [finding for finding in unusual if finding.is_grave] or unusual
    check_of = {check.code: check for check in installed_checks()}
    first_of: dict[str, Finding] = {}
    for finding in unusual:
        first_of.setdefault(finding.manual, finding)
    sightings = [
        Sighting(finding, _num_steps(run, finding, check_of.get(finding.code), usual)) for finding in first_of.values()
    ]
    return sorted(sightings, key=lambda sighting: sighting.num_steps)


def _num_steps(run: Run, finding: Finding, check: Check | None, usual: Collection[Key]) -> int:
    """Steps after which the finding is there, one step less having none; all, where no check can be asked."""
    steps = run.steps.tolist()
    # what was said while the job ran, or of its facts, no check says again
    if check is None:
        at = finding.step_last if finding.step_first is None else finding.step_first
        return len(steps) if at is None else bisect.bisect_right(steps, at)

    def says(number: int) -> bool:
        part = run.before(steps[number - 1] + 1)
        return any(match.manual == finding.manual and key_of(match) not in usual for match in _findings_of(check, part))

    return _least(says, len(steps))


def _least(holds: Callable[[int], bool], limit: int) -> int:
    """The least number up to ``limit``, which holds, such that one less does not: by doubling, then halving."""
    # what is seen at all is mostly seen early, and a short Run is judged faster
    low, high = 0, 1
    while high < limit and not holds(high):
        low, high = high, 2 * high
    high = min(high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _findings_of(check: Check, part: Run) -> Sequence[Finding]:
    try:
        parting = parting_of(part) if check.across_ranks else None
    except CannotTell:
        parting = None
    # as `check` does: ranks are not compared from the step on at which they part
    compared = part if parting is None else part.before(parting.step)
    answer = ask_checks(part, compared, [check], None)[0][check.code]
    return () if isinstance(answer, NotRun) else answer


def blamed(sightings: Sequence[Sighting], world_size: int) -> tuple[int, ...]:
    """Ranks that are told from others; none where all are named, or nobody is."""
    ranks_named = [set(sighting.finding.ranks) for sighting in sightings]
    told_apart = set[int]().union(*(ranks for ranks in ranks_named if len(ranks) < world_size))
    return tuple(sorted(told_apart)) if len(told_apart) < world_size else ()
