"""Facts that healthy trainings seldom have, as findings to confirm."""

from __future__ import annotations

from trueline.judge.facts.base_rates import BaseRate
from trueline.judge.facts.fact import Fact
from trueline.judge.facts.training_facts import TrainingFacts
from trueline.schema.finding import UNUSUAL, Finding


def unusual_findings(facts: TrainingFacts) -> list[Finding]:
    """A finding of severity confirm for each mark that the table of base rates has as unusual."""
    return [_finding(fact, mark, rate) for fact in facts.facts for mark, rate in fact.unusual.items()]


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
