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

from trueline.judge.following import Ahead, Answers, Followed, follow, join_parts, judged_ahead, parts_ahead
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

    answer: tuple[Finding, ...] | NotRun
    problems: tuple[Problem, ...]


Outcomes = Mapping[str, Outcome]
"""By the codes of the checks."""


@dataclass(frozen=True, eq=False)
class Views:
    """What of a Run checks are shown: ``whole``, and what of it is ``compared`` between ranks, the steps before
    ``parting`` (None: all). ``followed`` is what is known of it already; None: no check follows.
    """

    whole: Run
    compared: Run
    parting: int | None
    followed: Followed | None = None

    @classmethod
    def of(cls, run: Run, parting: int | None, followed: Followed | None = None) -> Views:
        """The views of a Run whose ranks part at step ``parting``; then nothing is followed."""
        if parting is not None:
            return cls(run, run.before(parting), parting)
        return cls(run, run, None, followed)

    def ask(self, checks: Sequence[Check]) -> Outcomes:
        """The outcome of each check, shown everything."""
        return {check.code: self._outcome(check) for check in checks}

    def meet(self, problems: Sequence[Problem]) -> None:
        """Name those of the Run that a worker met and that are not named yet."""
        self.whole.problems += [problem for problem in problems if problem not in self.whole.problems]

    def _outcome(self, check: Check) -> Outcome:
        met, run = len(self.whole.problems), self.compared if check.across_ranks else self.whole
        if self.followed is None:  # else most of those that are left have nothing to read
            run.load(check.needs)
        answer = _answer_of(check, run)
        return Outcome(answer, tuple(self.whole.problems[met:]))


@dataclass(frozen=True)
class _Ask:
    """Checks of one question, which read the same."""

    codes: tuple[str, ...]

    def done_on(self, views: Views) -> Outcomes:
        """The outcome of each."""
        return views.ask(_checks_of(self.codes))


@dataclass(frozen=True)
class _JudgeAhead:
    """A part of the steps, for some of those that follow."""

    part: Ahead

    def done_on(self, views: Views) -> tuple[Followed, tuple[Problem, ...]]:
        """What is known of them, and what of the Run could not be read."""
        met = len(views.whole.problems)
        followed = judged_ahead(views.whole, _checks_of(self.part.codes), views.followed or Followed(), self.part)
        return followed, tuple(views.whole.problems[met:])


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
    followed = views.followed
    answers: Answers = {}
    if followed is not None:
        followed = (
            followed if spread is None else _follow_ahead(spread, views, checks, followed, num=_num_workers(engine))
        )
        answers, followed = follow(views.whole, checks, followed)
    rest = [check for check in checks if check.code not in answers]
    outcomes = {code: Outcome(_answer_or_reason(code, answer), ()) for code, answer in answers.items()}
    if spread is None:
        return {**outcomes, **views.ask(rest)}, followed
    by_question: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for check in rest:
        by_question[check.question] += (check.code,)
    for of_questions in spread(
        views, [_Ask(by_question[question]) for question in sorted(by_question, key=_most_work_first)]
    ):
        outcomes |= of_questions
    for check in checks:
        views.meet(outcomes[check.code].problems)
    return outcomes, followed


def _answer_or_reason(code: str, answer: list[Finding] | CannotTell) -> tuple[Finding, ...] | NotRun:
    return not_run_of(code, answer) if isinstance(answer, CannotTell) else tuple(answer)


def _follow_ahead(spread: _Spread, views: Views, checks: Sequence[Check], followed: Followed, *, num: int) -> Followed:
    """What is known of the Run by those that follow, but for its last steps; these in ``num`` parts, where they can."""
    sets = parts_ahead(views.whole, checks, followed, num)
    results = spread(views, [_JudgeAhead(part) for parts in sets for part in parts])
    for parts in sets:
        of_parts, results = results[: len(parts)], results[len(parts) :]
        followed = followed.with_these(join_parts([part for part, _ in of_parts]))
        for _, problems in of_parts:
            views.meet(problems)
    return followed


def _most_work_first(question: str) -> tuple[int, str]:
    """The questions that take longest (benchmarks/scale) begin first, so that no worker waits for one at the end."""
    longest = ("workers", "replicas", "data", "repeats", "jumps")
    return (longest.index(question) if question in longest else len(longest), question)


def _answer_of(check: Check, run: Run) -> tuple[Finding, ...] | NotRun:
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
        futures = [pool.submit(_do, part) for part in work]
        return [_wait_for(future, views, part) for future, part in zip(futures, work, strict=True)]


def _wait_for(future: Future[Any], views: Views, work: _Work) -> Any:
    try:
        return future.result()
    except BrokenProcessPool:  # as where the system ran out of memory and killed one
        _log.warning("a process was lost; what it had to do is done here")
        return work.done_on(views)


_views_of_process: list[Views] = []
"""In a process that was forked to judge: what it judges."""


def _take(views: Views) -> None:
    _views_of_process[:] = [views]


def _do(work: _Work) -> Any:
    return work.done_on(_views_of_process[0])


def _checks_of(codes: Sequence[str]) -> list[Check]:
    return [check for check in installed_checks() if check.code in codes]


def _on_ray(views: Views, work: Sequence[_Work]) -> list[Any]:
    """Every worker opens the Run at its path, and leaves out what was written since it was opened here."""
    ray = _ray()
    with contextlib.suppress(OSError):
        views.whole.parts.keep()  # so that workers need not read all parts to see whether they are damaged
    task = ray.remote(max_retries=1)(_at_path)
    end = int(views.whole.steps[-1]) + 1 if len(views.whole.steps) else 0
    path = os.path.abspath(views.whole.path) if "://" not in views.whole.path else views.whole.path
    references = [task.remote(path, end, views.parting, views.followed, part) for part in work]
    results: list[Any] = []
    for reference, part in zip(references, work, strict=True):
        try:
            results.append(ray.get(reference))
        except ray.exceptions.RayError as error:
            _log.warning("%s; what it had to do is done here", why(error))
            results.append(part.done_on(views))
    return results


def _ray() -> Any:
    """Ray, started unless it runs."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise InputError("--engine ray needs Ray. Install it with: pip install ray.") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    return ray


def _at_path(path: str, end: int, parting: int | None, followed: Followed | None, work: _Work) -> Any:
    run = Run(path, parts=known_parts(path))
    run = run if not len(run.steps) or run.steps[-1] < end else run.before(end)
    return work.done_on(Views.of(run, parting, followed))
