"""Findings that tell of one fault, together: the same ranks since the same step, or one explained by another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trueline.schema.finding import SEVERITIES, Finding, Severity, by_weight
from trueline.schema.law import facts_of


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault as far as findings tell: ``findings`` are their places in the list that it was made from, the telling
    one first. ``ranks``, ``step_first`` and ``title`` (its claim) are those of the telling one, ``severity`` is the
    worst of all.
    """

    ranks: tuple[int, ...]
    step_first: int | None
    severity: Severity
    findings: tuple[int, ...]
    title: str

    def to_json(self) -> dict[str, Any]:
        return {
            "ranks": list(self.ranks),
            "step_first": self.step_first,
            "severity": self.severity,
            "findings": list(self.findings),
            "title": self.title,
        }


def incidents_of(findings: Sequence[Finding]) -> tuple[Incident, ...]:
    """The errors and warnings among ``findings`` by the fault they tell of, gravest and earliest first.

    Those of severity info are in none.
    """
    members = {index: {index} for index, finding in enumerate(findings) if finding.is_grave}
    # Transitive: findings that share a third one are of one fault.
    for member in members:
        for peer in members:
            if members[member] is not members[peer] and _belong_together(findings[member], findings[peer]):
                joined = members[member] | members[peer]
                members |= dict.fromkeys(joined, joined)
    groups = {min(group): group for group in members.values()}
    incidents = [_incident(findings, group) for group in groups.values()]
    return tuple(
        sorted(
            incidents,
            key=lambda incident: (SEVERITIES.index(incident.severity), by_weight(findings[incident.findings[0]])),
        )
    )


def explains(cause: Finding, effect: Finding) -> bool:
    """True if ``effect`` is what ``cause`` brings with it: by their codes, on a common rank, not before it, and no
    graver than it (but for what differs between jobs).
    """
    return (
        effect.code in facts_of(cause.code).explains
        and (not cause.ranks or not effect.ranks or not set(cause.ranks).isdisjoint(effect.ranks))
        and (facts_of(cause.code).of_jobs or SEVERITIES.index(cause.severity) <= SEVERITIES.index(effect.severity))
        and _onset(cause)[0] <= _onset(effect)[1]
    )


def _belong_together(first: Finding, second: Finding) -> bool:
    if _is_same_fault(first, second) or _is_same_fault(second, first):
        return True
    return (
        explains(first, second)
        or explains(second, first)
        or (first.ranks == second.ranks and _share_onset(first, second))
    )


def _is_same_fault(finding: Finding, second: Finding) -> bool:
    """True if the law of ``finding`` says that both tell of one fault."""
    facts = facts_of(finding.code)
    return second.code in facts.same_fault or (
        finding.ranks == second.ranks and second.code in facts.same_fault_on_ranks
    )


def _share_onset(first: Finding, second: Finding) -> bool:
    """True if both may have begun at one step."""
    (low, high), (other_low, other_high) = _onset(first), _onset(second)
    return first.step_first is not None and second.step_first is not None and low <= other_high and other_low <= high


def _onset(finding: Finding) -> tuple[float, float]:
    """First and last step at which what the Finding reports may have begun; any, where it names none.

    What is judged over many steps began somewhere before it crossed the line.
    """
    if finding.step_first is None:
        return float("-inf"), float("inf")
    crossed = finding.evidence.get("crossed_step")
    return finding.step_first, crossed if isinstance(crossed, int) else finding.step_first


def advice_of(group: Sequence[Finding]) -> tuple[str, ...]:
    """The advice of those findings of an incident that none of the others explains, each piece once."""
    return tuple(dict.fromkeys(line for finding in group if not is_explained(finding, group) for line in finding.next))


def is_explained(effect: Finding, group: Sequence[Finding]) -> bool:
    """True if any of ``group`` explains ``effect``."""
    return any(explains(cause, effect) for cause in group)


def is_told(finding: Finding, group: Sequence[Finding]) -> bool:
    """True if any of ``group`` tells of the same fault as ``finding``, or explains it."""
    return any(_is_same_fault(other, finding) or explains(other, finding) for other in group)


def _incident(findings: Sequence[Finding], group: set[int]) -> Incident:
    """The telling one is what no other of them explains."""
    members = [findings[index] for index in group]
    ordered = sorted(group, key=lambda index: (is_explained(findings[index], members), by_weight(findings[index])))
    telling = findings[ordered[0]]
    return Incident(
        ranks=telling.ranks,
        step_first=telling.step_first,
        severity=min(members, key=by_weight).severity,
        findings=tuple(ordered),
        title=telling.claim,
    )


def began(findings: Sequence[Finding]) -> Finding:
    """The one of ``findings`` of a fault that shows when it began: the first, unless another surely began earlier."""
    first, *later = findings
    dated = [finding for finding in later if finding.step_first is not None]
    if first.step_first is None or not dated:
        return first
    early = min(dated, key=lambda finding: begins_within(finding)[1])
    return early if begins_within(early)[1] < begins_within(first)[0] else first


def begins_within(finding: Finding) -> tuple[int, int]:
    """The first and last step at which what it shows may have begun; 0 where it is of no step."""
    match finding.step_first, finding.evidence.get("onset_interval"):
        case _, [int(low), int(high)]:
            return low, high
        case step, _:
            return (step, step) if step is not None else (0, 0)


def onset_interval(finding: Finding) -> tuple[int, int] | None:
    """The first and last step at which it may have begun, where its first step is only the last of them."""
    match finding.evidence.get("onset_interval"):
        case [int(low), int(high)] if low < high == finding.step_first:
            return low, high
        case _:
            return None
