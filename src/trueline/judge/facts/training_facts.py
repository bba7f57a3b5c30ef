"""All facts of one Run, in the order in which they are shown."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from trueline.judge.actions import judged_by_check
from trueline.judge.facts.fact import AREAS, Fact, Subject
from trueline.judge.facts.subjects import SUBJECTS
from trueline.schema.errors import CannotTell, RunError
from trueline.schema.judged import NOT_JUDGED
from trueline.schema.law import installed_laws, not_loaded
from trueline.schema.text.reading import why
from trueline.schema.text.shown import Shown
from trueline.schema.text.words import named_some
from trueline.store.log.part_files import known_parts
from trueline.store.reader import Run

_log = logging.getLogger(__name__)
SCHEMA = 1
"""Version of the document that ``TrainingFacts.to_json`` makes."""


@cache
def all_subjects() -> tuple[Subject, ...]:
    """``SUBJECTS`` and those of laws, each behind the others of its area."""
    subjects = list(SUBJECTS)
    for law in installed_laws():
        if path := law.answers.get("facts"):
            module, _, name = f"{law.package}.{path}".rpartition(".")
            try:
                subjects += getattr(importlib.import_module(module), name)
            except Exception as error:  # of another package
                _log.warning("facts: %s", not_loaded(module, error))
    areas = list(AREAS)
    return tuple(sorted(subjects, key=lambda subject: areas.index(subject.area)))


@dataclass(frozen=True, repr=False)
class TrainingFacts(Shown):
    """What a training did: ``facts`` in the order of ``all_subjects``. ``unknown`` are the subjects that the Run does
    not tell, with the reason.
    """

    run: str
    facts: tuple[Fact, ...]
    unknown: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract."""
        return {
            "schema": SCHEMA,
            "run": self.run,
            "status": NOT_JUDGED,
            "exit_code": 0,
            "cause": None,
            "actions": [judged_by_check(self.run).to_json()],
            "facts": [fact.to_json() for fact in self.facts],
            "unknown": dict(self.unknown),
        }

    def by_area(self) -> list[tuple[str, list[str]]]:
        """The heading of each area that has facts, and a line a fact."""
        lines = {heading: [fact.line for fact in self.facts if fact.area == area] for area, heading in AREAS.items()}
        return [(heading, texts) for heading, texts in lines.items() if texts]

    @property
    def unknown_line(self) -> str:
        """``Not known: the order of epochs (no DataLoader was gone through).``; '' where all is known."""
        reasons = "; ".join(f"{words} ({reason.rstrip('.')})" for words, reason in self.unknown.items())
        return f"Not known: {reasons}." if reasons else ""

    def _title(self) -> str:
        return f"What the training of {self.run} did"

    def _columns_shown(self) -> Mapping[str, Sequence[Any]]:
        return {
            "about": [fact.area for fact in self.facts],
            "fact": [fact.line for fact in self.facts],
        }

    def _notes(self) -> Sequence[str]:
        return [f"not known: {words}: {reason}" for words, reason in self.unknown.items()]


def read_facts(run: str | os.PathLike[str] | Run) -> TrainingFacts:
    """The facts of a Run, or a path of one. Raises ``RunError`` where there is no Run to read."""
    opened = run if isinstance(run, Run) else Run(run, parts=known_parts(run))
    facts: list[Fact] = []
    unknown: dict[str, str] = {}
    for subject in all_subjects():
        try:
            answer = subject.find(opened)
        except (CannotTell, RunError) as error:
            unknown[subject.words] = why(error)
            continue
        except Exception as error:  # whatever a law of another package does: the other facts are not lost with it
            unknown[subject.words] = f"it failed: {type(error).__name__}: {why(error)}"
            continue
        if answer is not None:  # else the job has nothing of the kind, which is no line
            facts.append(Fact(subject.name, subject.area, *answer, _sentences(subject, *answer)))
    if others := [*opened.groups, *opened.models.values()]:
        unknown["other groups of ranks, and other models"] = f"they have facts of their own: {named_some(others)}"
    return TrainingFacts(os.fspath(opened.path), tuple(facts), unknown)


def _sentences(subject: Subject, text: str, value: Any) -> dict[str, str]:
    """What each mark of ``subject`` that applies says, by its name."""
    sentences: dict[str, str] = {}
    for mark in subject.marks:
        with contextlib.suppress(Exception):  # of another package: the fact itself is not lost with it
            if mark.applies(value):
                sentences[mark.name] = text if mark.says is None else mark.says(value)
    return sentences
