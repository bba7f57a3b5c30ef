"""The checks that are installed: ours and those of other packages enter by one door, the group
``trueline.checks``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from trueline.analyze import checks
from trueline.analyze.follows import Adding, ByStep
from trueline.schema.errors import InputError
from trueline.schema.finding import Finding
from trueline.schema.judged import QUESTIONS, Question
from trueline.schema.text.reading import why
from trueline.store.reader import Run

GROUP = "trueline.checks"


@dataclass(frozen=True)
class Check:
    """One installed check: its code, the columns it reads, its first sentence, the function, which question it helps to
    answer, and whether it holds ranks against each other (the module's ``ACROSS_RANKS``, by default yes): then it is
    not shown steps that are not the same iteration on all of them. ``follows`` says how little it needs for a step, or
    what it carries from step to step (the module's ``FOLLOWS``); None: it may need all there are. ``manual`` is all
    that it says of itself.
    """

    code: str
    needs: tuple[str, ...]
    summary: str
    find: Callable[[Run], list[Finding]]
    question: Question = "other"
    across_ranks: bool = True
    manual: str = ""
    follows: ByStep | Adding | None = None


def installed_checks() -> list[Check]:
    """Every check, in the order of their codes. Raises ``InputError`` for an entry point that is no check.

    Where the package is run from its sources without being installed there are no entry points; then it is the
    modules below ``trueline.analyze.checks``.
    """
    entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    loaded = [_loaded(entry) for entry in entries] or [
        _checked(importlib.import_module(found.name), found.name)
        for found in pkgutil.walk_packages(checks.__path__, f"{checks.__name__}.")
        if not found.ispkg
    ]
    return sorted({check.code: check for check in loaded}.values(), key=lambda check: check.code)


def _loaded(entry: EntryPoint) -> Check:
    try:
        module = entry.load()
    except ImportError as error:
        raise InputError(
            f"Check '{entry.name}' cannot be loaded from '{entry.value}': {why(error)}. Reinstall or remove the "
            "package that registers it."
        ) from error
    return _checked(module, entry.name)


def _checked(module: ModuleType, name: str) -> Check:
    missing = [part for part in ("CODE", "NEEDS", "check") if not hasattr(module, part)]
    if missing:
        raise InputError(
            f"Check '{name}' in {getattr(module, '__name__', module)} lacks {', '.join(missing)}. A check is a module "
            "with CODE, NEEDS and check(run)."
        )
    manual = (module.__doc__ or "").strip()
    question = getattr(module, "QUESTION", "other")
    if question not in QUESTIONS:
        raise InputError(
            f"Check '{name}' has the QUESTION {question!r}. Use one of {', '.join(QUESTIONS)}, or leave it out."
        )
    return Check(
        module.CODE,
        tuple(module.NEEDS),
        manual.partition("\n")[0],
        module.check,
        question,
        getattr(module, "ACROSS_RANKS", True),
        manual,
        getattr(module, "FOLLOWS", None),
    )
