"""All checks asked of a Run, each for what it says or why it has no answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from trueline.judge.following import Followed, follow
from trueline.judge.registry import Check
from trueline.schema.errors import AlignmentError, CannotTell, InputError, RunError
from trueline.schema.finding import Finding
from trueline.schema.judged import NotRun
from trueline.schema.text.reading import why
from trueline.store.reader import Run

_log = logging.getLogger(__name__)

ROWS_AT_ONCE = 10_000
"""Rows of a Run that is read once for all checks. Of a larger one each check reads what it needs: of all columns at
once, two copies would have to fit into memory.
"""

Answer = tuple[Finding, ...] | NotRun


def ask_checks(
    run: Run, compared: Run, checks: Sequence[Check], followed: Followed | None
) -> tuple[Mapping[str, Answer], Followed | None]:
    """Answers of the checks by their codes, and what is known of the Run then by those that follow. Checks across ranks
    are shown ``compared``: the steps at which ranks can be compared. ``followed`` is what was known of the Run before;
    None: no check follows.
    """
    answers: dict[str, Answer] = {}
    loads_ahead = followed is None  # else most of the checks that are left have nothing to read
    if loads_ahead and len(run.steps) * len(run.ranks) <= ROWS_AT_ONCE:
        run.load({name for check in checks if not check.across_ranks or compared is run for name in check.needs})
        compared.load({name for check in checks if check.across_ranks for name in check.needs})
    if followed is not None:
        said, followed = follow(run, checks, followed)
        for code, answer in said.items():
            answers[code] = not_run_of(code, answer) if isinstance(answer, CannotTell) else tuple(answer)
    for check in checks:
        if check.code not in answers:
            shown = compared if check.across_ranks else run
            if loads_ahead:
                shown.load(check.needs)
            answers[check.code] = _ask(check, shown)
    return answers, followed


def _ask(check: Check, run: Run) -> Answer:
    try:
        return tuple(check.find(run))
    except Exception as error:
        return not_run_of(check.code, error)


def not_run_of(code: str, error: Exception) -> NotRun:
    """A check that is at odds with the data, or broken, must not take the others with it."""
    if isinstance(error, CannotTell):
        return NotRun(code, str(error), error.reason)
    if isinstance(error, InputError):
        return NotRun(code, str(error).rstrip("."), "failed")
    if isinstance(error, RunError | AlignmentError):
        return NotRun(code, str(error), "damaged" if isinstance(error, RunError) else "undecidable")
    _log.warning("check %s failed", code, exc_info=error)
    return NotRun(code, f"it failed with {type(error).__name__}: {why(error)}; please report this", "failed")
