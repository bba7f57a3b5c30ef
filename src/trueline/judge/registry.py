"""The checks that are installed: those of every law (``schema/law.py``), ours and of other packages, and single ones
that other packages register in the group ``trueline.checks``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType

from trueline.judge.follows import Adding, ByStep
from trueline.judge.where import Calls
from trueline.schema.errors import InputError
from trueline.schema.finding import Finding
from trueline.schema.judged import QUESTIONS, Question
from trueline.schema.law import Law, broken_laws, installed_laws, not_loaded
from trueline.schema.plugins import entry_points
from trueline.store.reader import Run

GROUP = "trueline.checks"


@dataclass(frozen=True)
class Check:
    """One installed check: its code, the columns it reads, its first sentence, the function, which question it helps to
    answer, and whether it holds ranks against each other (the module's ``ACROSS_RANKS``, by default yes): then it is
    not shown steps that are not the same iteration on all of them. ``follows`` says how little it needs for a step, or
    what it carries from step to step (the module's ``FOLLOWS``); None: it may need all there are. ``manual`` is all
    that it says of itself, and ``calls`` the kinds of call of the script that its findings are about (``CALLS``).
    """

    code: str
    needs: tuple[str, ...]
    summary: str
    find: Callable[[Run], list[Finding]]
    question: Question = "other"
    across_ranks: bool = True
    manual: str = ""
    follows: ByStep | Adding | None = None
    calls: Calls = field(default_factory=dict[str, Sequence[str]])


def installed_checks() -> list[Check]:
    """Every check, in the order of their codes. Of a law or an entry point that cannot be loaded, or is none, a check
    that has no answer but why: the others must not be lost with it.
    """
    checks = [_broken(law.name, law.reason) for law in broken_laws()]
    checks += [_of_law(law, code) for law in installed_laws() for code in law.checks]
    checks += [_loaded(entry.name, entry.value, entry.load) for entry in entry_points(group=GROUP)]
    # Of two checks with one code the later one counts: an entry point may replace one of ours.
    return sorted({check.code: check for check in checks}.values(), key=lambda check: check.code)


def _of_law(law: Law, code: str) -> Check:
    module = law.module_of(code)
    check = _loaded(code, module, partial(importlib.import_module, module))
    if check.code != code:
        return _broken(code, f"The law declares '{code}', and {module} has the CODE '{check.code}'. Make them one.")
    return check


def _loaded(name: str, value: str, load: Callable[[], ModuleType]) -> Check:
    try:
        return _checked(load())
    except InputError as error:
        return _broken(name, str(error))
    except (Exception, SystemExit) as error:  # whatever the module of another package does when it is imported
        return _broken(name, not_loaded(value, error))


def _broken(name: str, reason: str) -> Check:
    def find(run: Run) -> list[Finding]:
        raise InputError(reason)

    return Check(name, (), reason, find, manual=reason)


def _checked(module: ModuleType) -> Check:
    missing = [part for part in ("CODE", "NEEDS", "check") if not hasattr(module, part)]
    if missing:
        raise InputError(
            f"{getattr(module, '__name__', module)} is no check: it lacks {', '.join(missing)}. A check is a module "
            "with CODE, NEEDS and check(run)."
        )
    manual = (module.__doc__ or "").strip()
    question = getattr(module, "QUESTION", "other")
    if question not in QUESTIONS:
        raise InputError(f"It has the QUESTION {question!r}. Use one of {', '.join(QUESTIONS)}, or leave it out.")
    return Check(
        module.CODE,
        tuple(module.NEEDS),
        manual.partition("\n")[0],
        module.check,
        question,
        getattr(module, "ACROSS_RANKS", True),
        manual,
        getattr(module, "FOLLOWS", None),
        getattr(module, "CALLS", {}),
    )
