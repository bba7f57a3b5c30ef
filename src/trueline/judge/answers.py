"""What laws answer beside the findings of their checks (``Law.answers``)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from trueline.judge.recorded.step_values import StepValues, Value
from trueline.schema.errors import TruelineError
from trueline.schema.finding import Finding
from trueline.schema.judged import NotRun
from trueline.schema.law import Law, installed_laws
from trueline.schema.text.reading import why
from trueline.store.reader import Run


def left_out_notes(run: Run) -> list[str]:
    """Sentences on what of ``run`` laws could not judge."""
    sentences: list[str] = []
    for answer, failure in _answers("left_out", run):
        sentences += answer if failure is None else [failure]
    return sentences


def unlooked_notes(run: Run, not_run: Sequence[NotRun]) -> list[str]:
    """Sentences on where to look in ``run`` if nothing was found; ``not_run`` are the checks that have no answer."""
    sentences: list[str] = []
    for answer, failure in _answers("unlooked", run, not_run):
        sentences += answer if failure is None else [failure]
    return sentences


def reference_findings(run: Run, ref: Run) -> tuple[list[Finding], list[str]]:
    """What laws find of ``run`` and its reference that the comparison of values does not have, and sentences on it."""
    findings: list[Finding] = []
    sentences: list[str] = []
    for answer, failure in _answers("reference", run, ref):
        if failure is None:
            findings += answer[0]
        sentences += answer[1] if failure is None else [failure]
    return findings, sentences


def fault_path(step: StepValues) -> tuple[Sequence[Value], str] | None:
    """The values on the way of a fault through ``step``, and in words from where to where; None without one."""
    answers = (answer for answer, failure in _answers("fault_path", step) if failure is None and answer is not None)
    return next(answers, None)


def _answers(question: str, *args: Any) -> Iterator[tuple[Any, str | None]]:
    """Of each law that answers, its answer and None, or a sentence on why there is none."""
    for law in installed_laws():
        if question in law.answers:
            yield _answer(law, law.answers[question], *args)


def _answer(law: Law, path: str, *args: Any) -> tuple[Any, str | None]:
    module, _, function = f"{law.package}.{path}".rpartition(".")
    try:
        return getattr(importlib.import_module(module), function)(*args), None
    except TruelineError:
        raise
    except Exception as error:  # whatever another package does: the others are not lost with it
        return None, f"{module}.{function} failed ({type(error).__name__}: {why(error)}), and says nothing here."
