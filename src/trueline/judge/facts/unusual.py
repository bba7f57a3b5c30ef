"""Facts that healthy trainings seldom have, as findings to confirm."""

from __future__ import annotations

from collections.abc import Collection

from trueline.judge.facts.base_rates import BaseRate
from trueline.judge.facts.fact import Fact
from trueline.judge.facts.training_facts import TrainingFacts, all_subjects
from trueline.schema.finding import UNUSUAL, Finding
from trueline.schema.law import facts_of


def unusual_findings(facts: TrainingFacts, findings: Collection[Finding] = ()) -> list[Finding]:
    """A finding of severity confirm for each mark that the table of base rates has as unusual, but for those that one
    of ``findings`` says already.
    """
    codes = {finding.code for finding in findings if finding.severity != "info"}
    said = {mark.name for subject in all_subjects() for mark in subject.marks if not codes.isdisjoint(mark.said_by)}
    said |= {mark for code in codes for mark in facts_of(code).says}
    return [
        _finding(fact, mark, rate) for fact in facts.facts for mark, rate in fact.unusual.items() if mark not in said
    ]


def _finding(fact: Fact, mark: str, rate: BaseRate) -> Finding:
    text = fact.marks[mark].rstrip(".")
    return Finding(
        code=UNUSUAL,
        severity="confirm",
        claim=f"{text[:1].upper()}{text[1:]}. {rate.words[:1].upper()}{rate.words[1:]}.",
        measured=1.0,
        expected=rate.showing / rate.trainings,
        unit="share of trainings that show it",
        false_alarm_rate=rate.at_most,
        evidence={"kind": mark, "fact": fact.name, "value": fact.value},
    )
