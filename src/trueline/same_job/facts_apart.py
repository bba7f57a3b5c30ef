"""What two trainings did otherwise, side by side."""

from __future__ import annotations

from dataclasses import dataclass

from trueline.judge.facts.training_facts import SUBJECTS, read_facts
from trueline.store.reader import Run

ABSENT = "nothing of the kind"


@dataclass(frozen=True, slots=True)
class FactPair:
    """A fact ``name`` that two Runs say in other words or with other numbers: the sentence of each."""

    name: str
    run: str
    ref: str

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "run": self.run, "ref": self.ref}


def facts_apart(run: Run, ref: Run) -> tuple[FactPair, ...]:
    """Facts whose numbers differ, in the order of ``SUBJECTS``; without those that one of the Runs does not tell."""
    facts, ref_facts = read_facts(run), read_facts(ref)
    by_name = {fact.name: fact for fact in facts.facts}
    ref_by_name = {fact.name: fact for fact in ref_facts.facts}
    unknown = {*facts.unknown, *ref_facts.unknown}
    pairs: list[FactPair] = []
    for subject in SUBJECTS:
        fact, ref_fact = by_name.get(subject.name), ref_by_name.get(subject.name)
        # By its numbers: the sentence may also say how many steps were looked at.
        if subject.words in unknown or (fact and fact.value) == (ref_fact and ref_fact.value):
            continue
        pairs.append(FactPair(subject.name, fact.text if fact else ABSENT, ref_fact.text if ref_fact else ABSENT))
    return tuple(pairs)
