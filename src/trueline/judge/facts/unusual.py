"""Facts that healthy trainings seldom have, as findings to confirm."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from trueline.judge.facts.base_rates import BaseRate, base_rates
from trueline.judge.facts.fact import Fact, Mark, Subject
from trueline.judge.facts.training_facts import TrainingFacts, all_subjects
from trueline.schema.finding import UNUSUAL, Finding
from trueline.schema.law import facts_of


def unusual_findings(facts: TrainingFacts, findings: Collection[Finding] = ()) -> list[Finding]:
    """A finding of severity confirm for each mark that the table of base rates has as unusual, but for those that one
    of ``findings`` or another mark says already. Of several marks of one sentence the rarest is said.
    """
    by_findings = {mark for finding in findings if finding.severity != "info" for mark in _said_by(finding)}
    unusual = [(fact, _by_sentence(fact, by_findings)) for fact in facts.facts]
    names = {name for _, rates in unusual for name in rates}
    by_marks = {mark.name for subject in all_subjects() for mark in subject.marks if not names.isdisjoint(mark.said_by)}
    advice = {name: mark.advice for name, (_, mark) in all_marks().items()}
    return [
        _finding(fact, name, rate, advice.get(name, ""))
        for fact, rates in unusual
        for name, rate in rates.items()
        if name not in by_marks
    ]


def all_marks() -> Mapping[str, tuple[Subject, Mark]]:
    """Every mark by its name, with the subject that has it."""
    return {mark.name: (subject, mark) for subject in all_subjects() for mark in subject.marks}


def manuals_of_marks() -> dict[str, str]:
    """What each mark means, by the id of its finding, and below ``UNUSUAL`` what all of them are."""
    manuals = {f"{UNUSUAL}.{name}": _manual(subject, mark) for name, (subject, mark) in all_marks().items()}
    return {UNUSUAL: f"{_MANUAL}\n\nNames\n-----\n" + "\n".join(manuals)} | manuals


_MANUAL = """What few healthy trainings do, and this one did: it may be meant.

Facts of the training (`trueline facts RUN`) have measured base rates. What at most 5 % of healthy trainings show is to
be confirmed. `trueline explain NAME` says of each what to do."""


def _manual(subject: Subject, mark: Mark) -> str:
    rate = base_rates().get(mark.name)
    if rate is None or not rate.trainings:
        how_rare = "That is not measured, so `trueline check` does not ask about it."
    else:
        asks = "asks about it" if rate.is_unusual else "does not ask about it: more than 5 % do"
        how_rare = f"{rate.words[:1].upper()}{rate.words[1:]}; `trueline check` {asks}."
    return (
        f"A fact about {subject.words} that may be a mistake.\n\n"
        f"How rare it is\n--------------\n{how_rare}\n\n"
        f"What to do if it is not meant\n-----------------------------\n{mark.advice}\n\n"
        "What to do if it is meant\n-------------------------\n"
        f"`trueline confirm RUN {UNUSUAL}.{mark.name}`: `trueline check` says nothing of it from then on."
    )


def _said_by(finding: Finding) -> Iterator[str]:
    """Names of the marks that a finding says."""
    kinds = finding.evidence.get("kind", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    for said in facts_of(finding.code).says:
        kind, _, mark = said.rpartition("/")
        if not kind or kind in kinds:
            yield mark


def _by_sentence(fact: Fact, silent: Collection[str]) -> Mapping[str, BaseRate]:
    """Of each sentence of the unusual marks of ``fact`` the rarest one, where none of its marks is among ``silent``."""
    by_sentence: dict[str, dict[str, BaseRate]] = {}
    for name, rate in fact.unusual.items():
        by_sentence.setdefault(fact.marks[name], {})[name] = rate
    rarest: dict[str, BaseRate] = {}
    for rates in by_sentence.values():
        if rates.keys().isdisjoint(silent):
            name = min(rates, key=lambda name: rates[name].share)
            rarest[name] = rates[name]
    return rarest


def _finding(fact: Fact, mark: str, rate: BaseRate, advice: str) -> Finding:
    text = fact.marks[mark].rstrip(".")
    return Finding(
        code=UNUSUAL,
        severity="confirm",
        claim=f"{text[:1].upper()}{text[1:]}. {rate.words[:1].upper()}{rate.words[1:]}.",
        measured=1.0,
        expected=rate.share,
        unit="share of trainings that show it",
        false_alarm_rate=rate.at_most,
        evidence={"kind": mark, "fact": fact.name, "value": fact.value},
        next=(advice,) if advice else (),
    )
