"""A Finding as one line of the report's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trueline.render.evidence_words import evidence_words
from trueline.render.wording import false_alarm, number, span, steps_words
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, listed, ranges

_MAX_SITES = 8
"""Sites shown; the Run and `trueline check --json` have all."""


@dataclass(frozen=True, slots=True)
class FindingRow:
    """Texts of one Finding, and the ``number`` that charts mark it with.

    ``steps`` are those of the evidence; ``alarm`` is the step at which it crossed the line, where that came later.
    ``explained_by`` is the number of the finding that brings this one with it, and has the advice; 0 without one.
    """

    number: int
    severity: str
    code: str
    claim: str
    ranks: str
    steps: str
    alarm: str
    measured: str
    interval: str
    expected: str
    unit: str
    false_alarms: str
    next: tuple[str, ...]
    sites: tuple[str, ...]
    evidence: tuple[tuple[str, str], ...]
    explained_by: int = 0


def finding_row(
    number_on_page: int, finding: Finding, all_ranks: Sequence[int], *, explained_by: int = 0
) -> FindingRow:
    """The texts of ``finding``; ``all_ranks`` lets a Finding on every rank say so."""
    sites = list(finding.sites[:_MAX_SITES])
    if len(finding.sites) > _MAX_SITES:
        sites.append(f"and {counted(len(finding.sites) - _MAX_SITES, 'more site')}")
    return FindingRow(
        number=number_on_page,
        severity=finding.severity,
        code=finding.code,
        claim=finding.claim,
        ranks=_ranks(finding.ranks, all_ranks),
        steps=span(finding.step_first, finding.step_last),
        alarm=_alarm(finding),
        measured=number(finding.measured),
        interval=_interval(finding.evidence),
        expected="" if finding.expected is None else number(finding.expected),
        unit=finding.unit,
        false_alarms=false_alarm(finding.false_alarm_rate),
        next=finding.next,
        sites=tuple(sites),
        evidence=evidence_words(finding.evidence),
        explained_by=explained_by,
    )


def _ranks(ranks: Sequence[int], all_ranks: Sequence[int]) -> str:
    """``0 and 1``, or ``all 4 ranks``: the column's heading says the rest."""
    everyone = len(ranks) > 2 and set(ranks) == set(all_ranks)
    return f"all {len(ranks)} ranks" if everyone else listed(ranges(ranks, dash="–"))


def _alarm(finding: Finding) -> str:
    crossed = finding.evidence.get("crossed_step")
    return steps_words(crossed, None) if isinstance(crossed, int) and crossed != finding.step_first else ""


def _interval(evidence: Mapping[str, Any]) -> str:
    """``95 %: 1.08 to 1.12``, and of what, where that is not what was measured; nothing where there is none."""
    interval = evidence.get("interval")
    bounds = [end for end in interval if isinstance(end, int | float)] if isinstance(interval, Sequence) else []
    if len(bounds) != 2:
        return ""
    low, high = (number(bound, 3) for bound in bounds)
    quantity = evidence.get("interval_of")
    return f"95 %{f' of {quantity}' if quantity else ''}: {low} to {high}"
