"""A Run that the page shows: read again when it has grown, judged again when there is more to judge."""

from __future__ import annotations

import logging
import os
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trueline.schema.errors import InputError, RunError, TruelineError
from trueline.schema.text.reading import why
from trueline.store.reader import Run
from trueline.web.growth import Sizes, grown_tables, sizes_of
from trueline.web.judging import Compared, Judge, JudgeHere, Renames, name_map
from trueline.web.run_folders import RunFolder

if TYPE_CHECKING:
    from trueline.judge.check_run import CheckReport
    from trueline.judge.results import RunResults

_log = logging.getLogger(__name__)

EVERY_S = 1.0
"""Between two looks at the files of a Run whose job may still write; ``_QUIET`` times that where it has ended."""
_QUIET = 5
FOLDERS_EVERY_S = 2.0
"""Between two looks for Runs that began in a directory of Runs."""
_REST = 4.0
"""Reading, or judging, is not begun again before so many times as long as it took have passed."""


@dataclass
class Judgement:
    """The last judgement that was finished, up to which step it saw, and why there is none where it failed."""

    results: RunResults | None = None
    last_step: int | None = None
    failed: str = ""

    @property
    def report(self) -> CheckReport | None:
        """What the checks found."""
        return None if self.results is None else self.results.report


@dataclass
class WatchedRun:
    """A Run under a name. Whatever has changed since the page looked is told by ``versions``, numbers that grow."""

    path: str
    name: str
    ref: str | None
    judge: Judge
    run: Run = field(init=False)
    judgement: Judgement = field(default_factory=Judgement, init=False)
    versions: dict[str, int] = field(default_factory=lambda: {"workers": 1, "records": 1, "run": 1}, init=False)
    read_failure: str = field(default="", init=False)
    """Why the Run cannot be read any more; what is shown is what was read last."""
    compared: Compared | None = field(default=None, init=False)
    compare_failed: str = field(default="", init=False)
    renames: Renames = field(default=(), init=False)
    """Names of the reference, and what they are called here, as they were matched by hand."""

    def __post_init__(self) -> None:
        """Raises ``RunError`` where there is no Run to read."""
        begin = time.monotonic()
        self._sizes: Sizes = sizes_of(self.path)
        self.run = Run(self.path)
        self._lock = threading.Lock()
        self._pivots: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._tokens_T: np.ndarray | None = None
        self._took_s = time.monotonic() - begin
        self._read_at = self._judged_at = time.monotonic()
        self._judging: Future[RunResults] | None = None
        self._comparing: Future[Compared] | None = None
        self._judge_took_s = 0.0
        self._seen_step: int | None = None

    @property
    def last_step(self) -> int | None:
        """The last step that any rank has written."""
        return int(self.run.steps[-1]) if self.run.steps.size else None

    @property
    def live(self) -> bool:
        """True if the job may still write: ranks have not closed the Run, and were not seen to be killed."""
        report = self.judgement.report
        is_killed = report is not None and report.judged.killed
        return bool(self.run.unclosed) and not self.read_failure and not is_killed

    @property
    def is_judging(self) -> bool:
        """True if a judgement is under way."""
        return self._judging is not None

    @property
    def stamp(self) -> str:
        """A text that is another one whenever any answer may be."""
        return "-".join(map(str, self.versions.values())) + (" gone" if self.read_failure else "")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What is read within is there, or the Run is ``gone`` from here on. Raises ``RunError`` with that sentence:
        numbers are read when they are asked for, so that a Run may vanish between two looks.
        """
        try:
            yield
        except RunError as error:
            self._leave(error)
            raise RunError(self.read_failure) from None

    def pivot(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """``Run.pivot`` of what is shown, kept as long as that is shown."""
        with self._lock:
            if column not in self._pivots:
                self._pivots[column] = self.run.pivot(column)
            return self._pivots[column]

    def tokens_so_far(self) -> np.ndarray:
        """[T] float64: tokens of all ranks up to each step, NaN from one on of which they are not known; kept as
        ``pivot`` is.
        """
        if self._tokens_T is None:
            values_TN, measured_TN = self.pivot("tokens")
            known_T = np.where(measured_TN.any(axis=1), np.nansum(values_TN, axis=1), np.nan)
            self._tokens_T = np.cumsum(known_T)
        return self._tokens_T

    def look(self) -> None:
        """Take what has changed: files that grew, a judgement that was finished."""
        self._take_judgement()
        self._take_comparison()
        quiet_s = max(EVERY_S * (1 if self.run.unclosed else _QUIET), _REST * self._took_s)
        if time.monotonic() - self._read_at >= quiet_s:
            self._reread()
        self._begin_judging()

    def judge_now(self) -> None:
        """Judge what was read, and wait for it."""
        self._begin_judging()
        if self._judging is not None:
            wait([self._judging])
        self._take_judgement()

    def require_ref(self) -> str:
        """The reference. Raises ``InputError`` where none was given."""
        if self.ref is None:
            again = f"trueline view {shlex.quote(self.path)} --ref REF"
            raise InputError(f"There is no reference to compare with. Show the page with `{again}`, REF a second Run.")
        return self.ref

    def require_results(self) -> RunResults:
        """What was judged. Raises ``TruelineError`` where judging failed."""
        if self.judgement.results is None:
            raise TruelineError(f"'{self.path}' cannot be judged: {self.judgement.failed}")
        return self.judgement.results

    def compare_with(self, renames: Renames) -> None:
        """Compare again, with names matched by hand. Raises ``InputError`` for such as cannot be, or no reference."""
        ref = self.require_ref()
        name_map(renames)
        self.renames, self.compared, self.compare_failed = renames, None, ""
        self._comparing = self.judge.compare(self.path, ref, renames)
        self.versions["run"] += 1

    def _reread(self) -> None:
        begin = self._read_at = time.monotonic()
        try:
            sizes = sizes_of(self.path)
            tables = grown_tables(self._sizes, sizes)
            if not tables and not self.read_failure:
                return
            run = Run(self.path)
        except (TruelineError, OSError) as error:
            self._leave(error)
            return
        with self._lock:
            self.run, self._sizes, self.read_failure = run, sizes, ""
            self._pivots, self._tokens_T = {}, None
        self._took_s = time.monotonic() - begin
        for table in tables or ["run"]:
            self.versions[table] += 1

    def _leave(self, error: Exception) -> None:
        if not self.read_failure:
            reason = why(error).removesuffix(". Open the Run again")
            self.read_failure = f"The Run can no longer be read: {reason}. What is shown was read before."
            self.versions["run"] += 1

    def _begin_judging(self) -> None:
        # A judge that is busy all the time would take a core from the training that it may share a machine with.
        rests = time.monotonic() - self._judged_at < _REST * self._judge_took_s
        if self._judging is not None or self.read_failure or rests or self._judged_all:
            return
        self._judged_at, self._seen_step = time.monotonic(), self.last_step
        self._judged_of = dict(self.versions)
        self._judging = self.judge.check(self.path, self.ref)
        if self.ref is not None and self._comparing is None:
            self._comparing = self.judge.compare(self.path, self.ref, self.renames)

    @property
    def _judged_all(self) -> bool:
        return all(
            self.versions[table] == getattr(self, "_judged_of", {}).get(table) for table in ("workers", "records")
        )

    def _take_judgement(self) -> None:
        if self._judging is None or not self._judging.done():
            return
        future, self._judging = self._judging, None
        self._judge_took_s = time.monotonic() - self._judged_at
        self._judged_at = time.monotonic()
        try:
            self.judgement = Judgement(future.result(), self._seen_step)
        except Exception as error:  # whatever a check, or the end of its process, may raise: the page goes on
            self.judgement = Judgement(self.judgement.results, self.judgement.last_step, _error_text(error))
        self.versions["run"] += 1

    def _take_comparison(self) -> None:
        if self._comparing is None or not self._comparing.done():
            return
        future, self._comparing = self._comparing, None
        try:
            self.compared, self.compare_failed = future.result(), ""
        except Exception as error:
            self.compare_failed = _error_text(error)
        self.versions["run"] += 1


class Watching:
    """A thread that looks at all Runs again and again until it is closed, and adds to them what comes into
    ``folders``.
    """

    def __init__(self, runs: list[WatchedRun], folders: Sequence[RunFolder] = ()) -> None:
        self._runs, self._folders = runs, folders
        self._folders_looked_at = time.monotonic()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="trueline-view", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(10)

    def _go_on(self) -> None:
        while True:
            self._add_new()
            for run in self._runs:
                try:
                    run.look()
                except Exception as error:  # as where the judge is being closed; the page goes on with what it has
                    if not self._closing.is_set():
                        _log.warning("looking at %s failed", run.path, exc_info=error)
            if self._closing.wait(EVERY_S / 4):
                return

    def _add_new(self) -> None:
        """Runs that began in a folder since the last look there."""
        if time.monotonic() - self._folders_looked_at < FOLDERS_EVERY_S:
            return
        self._folders_looked_at = time.monotonic()
        for folder in self._folders:
            try:
                paths = folder.new_runs()
            except OSError as error:
                _log.warning("looking for Runs in %s failed", folder.path, exc_info=error)
                continue
            for path in paths:
                try:
                    new_runs = watched_runs([path], None, self._runs[0].judge)
                except (OSError, TruelineError):
                    folder.forget(path)  # it has just begun: the next look may read it
                    continue
                for run in new_runs:
                    run.name = _free_name(run, self._runs)
                self._runs.extend(new_runs)


def _free_name(run: WatchedRun, others: Sequence[WatchedRun]) -> str:
    return run.path if run.name in {other.name for other in others} else run.name


def _error_text(error: Exception) -> str:
    return str(error) if isinstance(error, TruelineError) else f"{type(error).__name__}: {why(error)}"


def watched_runs(
    paths: Sequence[str | os.PathLike[str]], ref: str | None, judge: Judge, folders: Sequence[RunFolder] = ()
) -> list[WatchedRun]:
    """The Runs of ``paths``, those in ``folders`` among them, those of further groups of ranks and models, and the
    reference, under names that differ. Raises ``RunError``.
    """
    if ref is not None:
        Run(ref)
    refs_by_path: list[tuple[str, str | None]] = []
    runs_by_folder = {folder.path: folder.new_runs() for folder in folders}
    for path in [path for argument in map(os.fspath, paths) for path in runs_by_folder.get(argument, [argument])]:
        run = Run(path)
        refs_by_path += [(path, ref), *((path_further, None) for path_further in (*run.groups, *run.models.values()))]
    if ref is not None and os.path.realpath(ref) not in {os.path.realpath(path) for path, _ in refs_by_path}:
        refs_by_path.append((ref, None))
    names = distinct_names([path for path, _ in refs_by_path])
    return [WatchedRun(path, name, its_ref, judge) for (path, its_ref), name in zip(refs_by_path, names, strict=True)]


def judged_runs(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[WatchedRun]:
    """``watched_runs`` of one or several paths, judged once, in this process. Raises ``RunError``, ``InputError``."""
    path_list = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not path_list:
        raise InputError(
            "A report needs at least one Run. Pass a directory that trueline.watch or `trueline run` wrote."
        )
    runs = watched_runs(path_list, None, JudgeHere())
    for run in runs:
        run.judge_now()
        run.require_results()
    return runs


def distinct_names(paths: Sequence[str]) -> list[str]:
    """The last part of each path, with as many parts before it as tell it from other paths; repeats are numbered."""
    parts = {path: [part for part in path.replace("\\", "/").split("/") if part] or ["Run"] for path in paths}
    short = {path: parts_of_path[-1] for path, parts_of_path in parts.items()}
    for depth in range(2, max(map(len, parts.values())) + 1):
        names_so_far = list(short.values())
        short = {
            path: "/".join(parts[path][-depth:]) if names_so_far.count(name) > 1 else name
            for path, name in short.items()
        }
    names = [short[path] for path in paths]
    repeats = [names[: index + 1].count(name) for index, name in enumerate(names)]
    return [
        f"{name} ({repeat})" if names.count(name) > 1 else name for name, repeat in zip(names, repeats, strict=True)
    ]
