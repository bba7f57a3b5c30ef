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

from trueline.judge.facts import data, loss, model, precision, update
from trueline.judge.facts.fact import AREAS, Fact, Mark, Subject
from trueline.schema.errors import CannotTell, RunError
from trueline.schema.law import installed_laws, not_loaded
from trueline.schema.text.reading import why
from trueline.schema.text.shown import Shown
from trueline.schema.text.words import named_some
from trueline.store.log.part_files import known_parts
from trueline.store.reader import Run

_log = logging.getLogger(__name__)
SCHEMA = 1
"""Version of the document that ``TrainingFacts.to_json`` makes."""

SUBJECTS: tuple[Subject, ...] = (
    Subject(
        "samples",
        "data",
        "samples",
        data.samples,
        (Mark("few-of-the-data-set", data.reads_few, said_by=("samples-never-read",)),),
    ),
    Subject("loader", "data", "the DataLoader", data.loader),
    Subject(
        "epoch-order",
        "data",
        "the order of epochs",
        data.epoch_order,
        (Mark("stream-in-one-order", data.streams_in_one_order),),
    ),
    Subject(
        "read-twice",
        "data",
        "samples that come again within an epoch",
        data.read_twice,
        (Mark("samples-twice-in-an-epoch", data.reads_many_twice),),
    ),
    Subject(
        "data-share",
        "data",
        "the share of the data that ranks read",
        data.shares,
        (
            Mark("samples-never-read", data.leaves_many_out, data.unread_samples),
            Mark("samples-alike", data.has_many_alike, data.alike_samples),
        ),
    ),
    Subject("batch", "data", "the size of batches", data.batch),
    Subject("tokens", "data", "tokens", data.tokens),
    Subject(
        "parameters",
        "model",
        "parameters",
        model.parameters,
        (
            Mark(
                "frozen-without-adapters",
                model.is_frozen_as_drawn,
                model.frozen_parts,
            ),
        ),
    ),
    Subject(
        "adapters",
        "model",
        "adapters",
        model.adapters,
        (Mark("adapter-frozen", lambda value: any(not counts["trained"] for counts in value.values())),),
    ),
    Subject(
        "without-gradient",
        "model",
        "parameters without a gradient",
        model.without_gradient,
        (Mark("parameters-without-gradient", lambda value: bool(value["without"])),),
    ),
    Subject(
        "tied",
        "model",
        "ties",
        model.tied,
        (Mark("numbered-layers-tied", model.ties_numbered_layers, model.numbered_ties),),
    ),
    Subject(
        "evaluation-modules",
        "model",
        "modules in evaluation mode",
        model.evaluation_modules,
        (Mark("modules-in-evaluation-mode", lambda value: value["most"] > 0),),
    ),
    Subject(
        "weight-dtypes",
        "model",
        "dtypes of parameters",
        model.weight_dtypes,
        (Mark("weights-in-16-bits", model.only_in_16_bits),),
    ),
    Subject(
        "loss",
        "loss",
        "the loss",
        loss.loss,
        (
            Mark("loss-did-not-fall", lambda value: value.get("fell") is False and not value.get("rose")),
            Mark("loss-never-moves", lambda value: value.get("constant") is True),
            # Of models that train against each other, what one gains another loses.
            Mark("loss-rose", lambda value: value.get("rose") is True and not value.get("models")),
            Mark("loss-below-zero", loss.falls_below_zero, loss.sign_to_confirm),
        ),
    ),
    Subject("optimizer", "update", "the optimizer", update.optimizer),
    Subject(
        "learning-rate",
        "update",
        "the learning rate",
        update.learning_rate,
        (
            Mark("rate-rises-again", update.rises_again),
            Mark("rate-still-rises", update.still_rises),
            Mark("rate-nearly-gone", update.nearly_gone),
            Mark("rate-tiny", lambda value: 0 < value["largest"] < 1e-5),
        ),
    ),
    Subject(
        "rate-zero",
        "update",
        "updates at rate 0",
        update.rate_zero,
        # A warm-up begins with one such update.
        (Mark("rate-zero", lambda value: value["updates"] > 1),),
    ),
    Subject(
        "clipping",
        "update",
        "clipping",
        update.clipping,
        (
            Mark("all-calls-clip", lambda value: value["calls"] > 1 and value["clipped"] == value["calls"]),
            Mark("clips-to-a-hundredth", lambda value: (value.get("times_the_limit") or 0) >= update.HARD),
            Mark("no-call-clips", lambda value: value["calls"] > 1 and not value["clipped"]),
        ),
    ),
    Subject(
        "scaler",
        "update",
        "the loss scale",
        update.scaler,
        (Mark("scaler-leaves-out-many", update.leaves_out_many),),
    ),
    Subject("autocast", "precision", "autocast", precision.autocast),
    Subject("switches", "precision", "switches of torch", precision.switches),
    Subject("seeds", "precision", "seeds", precision.seeds),
    Subject(
        "random-streams",
        "precision",
        "random streams",
        precision.streams,
        (Mark("streams-shared", lambda value: any(value.values())),),
    ),
    Subject("starts", "starts", "starts", precision.starts),
)


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


@dataclass(frozen=True)
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
