"""Where checks work: in this process, in several processes of this machine, or on Ray.

A check is a pure function of a Run, and the checks of one question read the same: so one question is one piece of work,
and its outcome is the same wherever it is worked out. A piece that a worker was lost with is worked out here.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from trueline.analyze.following import Followed, Told, follow
from trueline.analyze.registry import Check, installed_checks
from trueline.schema.errors import AlignmentError, CannotTell, InputError, RunError
from trueline.schema.finding import Finding
from trueline.schema.judged import NotRun
from trueline.schema.text.reading import why
from trueline.store.file_names import Problem
from trueline.store.reader import Run

_log = logging.getLogger(__name__)

Engine = Literal["here", "local", "ray"]


@dataclass(frozen=True)
class Outcome:
    """What a check found, or why it has no answer; the ``problems`` of the Run that it was the first to meet; and what
    is known of the Run since, by this check and those that were asked before it with it (``followed``).
    """

    said: tuple[Finding, ...] | NotRun
    problems: tuple[Problem, ...]
    followed: Followed | None = None


Outcomes = Mapping[str, Outcome]
"""By the codes of the checks."""


@dataclass(frozen=True, eq=False)
class Views:
    """What of a Run checks are shown: ``whole``, and what of it is ``compared`` between ranks, the steps before
    ``parting`` (None: all). ``known`` is what is known of it already; None: no check follows.
    """

    whole: Run
    compared: Run
    parting: int | None
    known: Followed | None = None

    @classmethod
    def of(cls, run: Run, parting: int | None, known: Followed | None = None) -> Views:
        """The views of a Run whose ranks part at step ``parting``; then nothing is followed."""
        if parting is not None:
            return cls(run, run.before(parting), parting)
        return cls(run, run, None, known)

    def judged(self, checks: Sequence[Check]) -> Outcomes:
        """The outcome of each check."""
        if self.known is None:
            return {each.code: self._outcome(each) for each in checks}
        met = len(self.whole.problems)
        told, followed = follow(self.whole, checks, self.known)
        problems = tuple(self.whole.problems[met:])
        outcomes = {each.code: _told(each, told) if each.code in told else self._outcome(each) for each in checks}
        return {
            code: replace(each, problems=(*(problems if not place else ()), *each.problems), followed=followed)
            for place, (code, each) in enumerate(outcomes.items())
        }

    def _outcome(self, check: Check) -> Outcome:
        known, run = len(self.whole.problems), self.compared if check.across_ranks else self.whole
        if self.known is None:  # else most of those that are left have nothing to read
            run.load(check.needs)
        said = _said(check, run)
        return Outcome(said, tuple(self.whole.problems[known:]))


def _told(check: Check, told: Told) -> Outcome:
    said = told[check.code]
    return Outcome(not_run_of(check.code, said) if isinstance(said, CannotTell) else tuple(said), ())


def judged_on(engine: Engine, views: Views, checks: Sequence[Check]) -> Outcomes:
    """The outcome of each check, worked out on ``engine``; the Run has the problems that they met. Raises
    ``InputError`` where there is no engine of that name, or it is not installed.
    """
    if engine not in get_args(Engine):
        raise InputError(f"There is no engine '{engine}'. Use one of {', '.join(get_args(Engine))}.")
    if engine == "here":
        return views.judged(checks)
    by_question: defaultdict[str, list[Check]] = defaultdict(list)
    for each in checks:
        by_question[each.question].append(each)
    pieces = [by_question[question] for question in sorted(by_question, key=_most_work_first)]
    found = (_in_processes if engine == "local" else _on_ray)(views, pieces)
    outcomes = {code: outcome for each in found for code, outcome in each.items()}
    for each in checks:
        views.whole.problems += [one for one in outcomes[each.code].problems if one not in views.whole.problems]
    return outcomes


def _most_work_first(question: str) -> tuple[int, str]:
    """The questions that take longest (benchmarks/scale) begin first, so that no worker waits for one at the end."""
    longest = ("workers", "replicas", "data", "repeats", "jumps")
    return (longest.index(question) if question in longest else len(longest), question)


def _said(check: Check, run: Run) -> tuple[Finding, ...] | NotRun:
    try:
        return tuple(check.find(run))
    except Exception as error:
        return not_run_of(check.code, error)


def not_run_of(code: str, error: Exception) -> NotRun:
    """A check that is at odds with the data, or broken, must not take the others with it."""
    if isinstance(error, CannotTell):
        return NotRun(code, str(error), error.reason)
    if isinstance(error, RunError | AlignmentError):
        return NotRun(code, str(error), "damaged" if isinstance(error, RunError) else "undecidable")
    _log.warning("check %s failed", code, exc_info=error)
    return NotRun(code, f"it failed with {type(error).__name__}: {why(error)}; please report this", "failed")


def _in_processes(views: Views, pieces: Sequence[Sequence[Check]]) -> list[Outcomes]:
    """Forked, so that every process judges the Run as it was opened here, without opening it again."""
    try:
        forked = multiprocessing.get_context("fork")
    except ValueError:
        raise InputError("--engine local forks, and this system cannot. Leave the option out, or use ray.") from None
    workers = min(os.cpu_count() or 1, len(pieces))
    with ProcessPoolExecutor(workers, mp_context=forked, initializer=_take, initargs=(views,)) as pool:
        futures = [pool.submit(_piece, [each.code for each in piece]) for piece in pieces]
        return [_waited(future, views, piece) for future, piece in zip(futures, pieces, strict=True)]


def _waited(future: Future[Outcomes], views: Views, piece: Sequence[Check]) -> Outcomes:
    try:
        return future.result()
    except BrokenProcessPool:  # as where the system ran out of memory and killed one
        _log.warning("a process was lost; %s judged here", ", ".join(each.code for each in piece))
        return views.judged(piece)


_mine: list[Views] = []
"""In a process that was forked to judge: what it judges."""


def _take(views: Views) -> None:
    _mine[:] = [views]


def _piece(codes: Sequence[str]) -> Outcomes:
    return _mine[0].judged(_chosen(codes))


def _chosen(codes: Sequence[str]) -> list[Check]:
    return [each for each in installed_checks() if each.code in codes]


def _on_ray(views: Views, pieces: Sequence[Sequence[Check]]) -> list[Outcomes]:
    """Every worker opens the Run at its path, and leaves out what was written since it was opened here."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise InputError("--engine ray needs Ray. Install it with: pip install ray.") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    task = ray.remote(max_retries=1)(_at_path)
    end = int(views.whole.steps[-1]) + 1 if len(views.whole.steps) else 0
    path = os.path.abspath(views.whole.path) if "://" not in views.whole.path else views.whole.path
    given = [task.remote(path, end, views.parting, views.known, [each.code for each in piece]) for piece in pieces]
    found: list[Outcomes] = []
    for each, piece in zip(given, pieces, strict=True):
        try:
            found.append(ray.get(each))
        except ray.exceptions.RayError as error:
            _log.warning("%s; %s judged here", why(error), ", ".join(each.code for each in piece))
            found.append(views.judged(piece))
    return found


def _at_path(path: str, end: int, parting: int | None, known: Followed | None, codes: Sequence[str]) -> Outcomes:
    run = Run(path)
    run = run if not len(run.steps) or run.steps[-1] < end else run.before(end)
    return Views.of(run, parting, known).judged(_chosen(codes))
