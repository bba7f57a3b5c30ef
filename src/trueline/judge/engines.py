"""Where checks work: in this process, in several processes of this machine, or on Ray.

A check is a pure function of a Run, and the checks of one question read the same: so one question is one piece of work,
and its outcome is the same wherever it is worked out. Of checks that follow, a part of the steps is one. A piece that a
worker was lost with is worked out here.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trueline.judge.following import Ahead, Followed, Told, follow, joined, judged_ahead, parts_ahead
from trueline.judge.registry import Check, installed_checks
from trueline.schema.errors import AlignmentError, CannotTell, InputError, RunError
from trueline.schema.finding import Finding
from trueline.schema.judged import NotRun
from trueline.schema.text.reading import why
from trueline.store.file_names import Problem
from trueline.store.log.part_files import known_parts
from trueline.store.reader import Run

_log = logging.getLogger(__name__)

_CORES = os.cpu_count() or 1

Engine = Literal["here", "local", "ray"]


@dataclass(frozen=True)
class Outcome:
    """What a check found, or why it has no answer; and the ``problems`` of the Run that it was the first to meet."""

    said: tuple[Finding, ...] | NotRun
    problems: tuple[Problem, ...]


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

    def asked(self, checks: Sequence[Check]) -> Outcomes:
        """The outcome of each check, shown everything."""
        return {check.code: self._outcome(check) for check in checks}

    def meet(self, problems: Sequence[Problem]) -> None:
        """Name those of the Run that a worker met and that are not named yet."""
        self.whole.problems += [problem for problem in problems if problem not in self.whole.problems]

    def _outcome(self, check: Check) -> Outcome:
        met, run = len(self.whole.problems), self.compared if check.across_ranks else self.whole
        if self.known is None:  # else most of those that are left have nothing to read
            run.load(check.needs)
        said = _said(check, run)
        return Outcome(said, tuple(self.whole.problems[met:]))


@dataclass(frozen=True)
class _Ask:
    """Checks of one question, which read the same."""

    codes: tuple[str, ...]

    def of(self, views: Views) -> Outcomes:
        """The outcome of each."""
        return views.asked(_chosen(self.codes))


@dataclass(frozen=True)
class _JudgeAhead:
    """A part of the steps, for some of those that follow."""

    part: Ahead

    def of(self, views: Views) -> tuple[Followed, tuple[Problem, ...]]:
        """What is known of them, and what of the Run could not be read."""
        met = len(views.whole.problems)
        found = judged_ahead(views.whole, _chosen(self.part.codes), views.known or Followed(), self.part)
        return found, tuple(views.whole.problems[met:])


_Work = _Ask | _JudgeAhead
_Spread = Callable[[Views, Sequence[_Work]], list[Any]]
"""Does all work, wherever, and returns what it gives, in order."""


def judged_on(engine: Engine, views: Views, checks: Sequence[Check]) -> tuple[Outcomes, Followed | None]:
    """The outcome of each check, worked out on ``engine``, and what is known of the Run then, if any of them follows;
    the Run has the problems that they met. Raises ``InputError`` where there is no engine of that name, or it is not
    installed.
    """
    if engine not in get_args(Engine):
        raise InputError(f"There is no engine '{engine}'. Use one of {', '.join(get_args(Engine))}.")
    spread = {"here": None, "local": _in_processes, "ray": _on_ray}[engine]
    known = views.known
    told: Told = {}
    if known is not None:
        known = known if spread is None else _ahead(spread, views, checks, known, num=_num_workers(engine))
        told, known = follow(views.whole, checks, known)
    rest = [check for check in checks if check.code not in told]
    outcomes = {code: Outcome(_of_told(code, said), ()) for code, said in told.items()}
    if spread is None:
        return {**outcomes, **views.asked(rest)}, known
    by_question: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for each in rest:
        by_question[each.question] += (each.code,)
    for found in spread(views, [_Ask(by_question[question]) for question in sorted(by_question, key=_most_work_first)]):
        outcomes |= found
    for each in checks:
        views.meet(outcomes[each.code].problems)
    return outcomes, known


def _of_told(code: str, said: list[Finding] | CannotTell) -> tuple[Finding, ...] | NotRun:
    return not_run_of(code, said) if isinstance(said, CannotTell) else tuple(said)


def _ahead(spread: _Spread, views: Views, checks: Sequence[Check], known: Followed, *, num: int) -> Followed:
    """What is known of the Run by those that follow, but for its last steps; these in ``num`` parts, where they can."""
    sets = parts_ahead(views.whole, checks, known, num)
    found = spread(views, [_JudgeAhead(part) for parts in sets for part in parts])
    for parts in sets:
        of_parts, found = found[: len(parts)], found[len(parts) :]
        known = known.with_these(joined([each for each, _ in of_parts]))
        for _, problems in of_parts:
            views.meet(problems)
    return known


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
    if isinstance(error, InputError):
        return NotRun(code, str(error).rstrip("."), "failed")
    if isinstance(error, RunError | AlignmentError):
        return NotRun(code, str(error), "damaged" if isinstance(error, RunError) else "undecidable")
    _log.warning("check %s failed", code, exc_info=error)
    return NotRun(code, f"it failed with {type(error).__name__}: {why(error)}; please report this", "failed")


def _num_workers(engine: Engine) -> int:
    return _CORES if engine == "local" else max(int(_ray().cluster_resources().get("CPU", 1)), 1)


def _in_processes(views: Views, work: Sequence[_Work]) -> list[Any]:
    """Forked, so that every process judges the Run as it was opened here, without opening it again."""
    try:
        forked = multiprocessing.get_context("fork")
    except ValueError:
        raise InputError("--engine local forks, and this system cannot. Leave the option out, or use ray.") from None
    if not work:
        return []
    workers = min(_CORES, len(work))
    with ProcessPoolExecutor(workers, mp_context=forked, initializer=_take, initargs=(views,)) as pool:
        futures = [pool.submit(_done, each) for each in work]
        return [_waited(future, views, each) for future, each in zip(futures, work, strict=True)]


def _waited(future: Future[Any], views: Views, work: _Work) -> Any:
    try:
        return future.result()
    except BrokenProcessPool:  # as where the system ran out of memory and killed one
        _log.warning("a process was lost; what it had to do is done here")
        return work.of(views)


_mine: list[Views] = []
"""In a process that was forked to judge: what it judges."""


def _take(views: Views) -> None:
    _mine[:] = [views]


def _done(work: _Work) -> Any:
    return work.of(_mine[0])


def _chosen(codes: Sequence[str]) -> list[Check]:
    return [check for check in installed_checks() if check.code in codes]


def _on_ray(views: Views, work: Sequence[_Work]) -> list[Any]:
    """Every worker opens the Run at its path, and leaves out what was written since it was opened here."""
    ray = _ray()
    with contextlib.suppress(OSError):
        views.whole.parts.keep()  # so that workers need not read all parts to see whether they are damaged
    task = ray.remote(max_retries=1)(_at_path)
    end = int(views.whole.steps[-1]) + 1 if len(views.whole.steps) else 0
    path = os.path.abspath(views.whole.path) if "://" not in views.whole.path else views.whole.path
    given = [task.remote(path, end, views.parting, views.known, each) for each in work]
    found: list[Any] = []
    for each, own in zip(given, work, strict=True):
        try:
            found.append(ray.get(each))
        except ray.exceptions.RayError as error:
            _log.warning("%s; what it had to do is done here", why(error))
            found.append(own.of(views))
    return found


def _ray() -> Any:
    """Ray, started unless it runs."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise InputError("--engine ray needs Ray. Install it with: pip install ray.") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    return ray


def _at_path(path: str, end: int, parting: int | None, known: Followed | None, work: _Work) -> Any:
    run = Run(path, parts=known_parts(path))
    run = run if not len(run.steps) or run.steps[-1] < end else run.before(end)
    return work.of(Views.of(run, parting, known))
