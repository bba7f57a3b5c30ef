"""Judging, in a process of its own: the checks of a large Run take minutes, and the page must answer meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trueline.comparison.match.names import NameMap
    from trueline.comparison.result import Comparison
    from trueline.judge.results import RunResults
    from trueline.render.comparison.compare_story import Story

Renames = tuple[tuple[str, str], ...]
"""Names, or parts of names, and what they become."""

_NICER = 10
"""By how much the judge gives way to the training that it may share a machine with."""


@dataclass(frozen=True)
class Compared:
    """A Run compared with a reference, and the comparison in words."""

    comparison: Comparison
    story: Story


class Judge:
    """One process that judges Runs, one after the other; it starts with the first."""

    def __init__(self) -> None:
        self._pool = _pool()

    def check(self, path: str, ref: str | None) -> Future[RunResults]:
        """What `check` and `diagnose` say of the Run at ``path``, and how far apart its workers are."""
        return self._submit(_checked, path, ref)

    def compare(self, path: str, ref: str, renames: Renames = ()) -> Future[Compared]:
        """What `compare` says of the Run at ``path``, with names matched by hand."""
        return self._submit(_compared, path, ref, renames)

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        try:
            return self._pool.submit(work, *arguments)
        except BrokenExecutor:  # its process was killed, as for memory: the next judgement may fit again
            self._pool = _pool()
            return self._pool.submit(work, *arguments)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        processes, thread = list((self._pool._processes or {}).values()), self._pool._executor_manager_thread
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
            process.join(10)
        if thread is not None:  # it closes a pipe that Python writes to as it exits
            thread.join(10)


class JudgeHere(Judge):
    """Judges in this process, at once: for a file, which nobody waits for."""

    def __init__(self) -> None:
        pass

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Nothing is there to end."""


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=os.nice, initargs=(_NICER,))


def _checked(path: str, ref: str | None) -> RunResults:
    from trueline.judge.results import results_of

    return results_of(path, ref)


def name_map(renames: Renames) -> NameMap | None:
    """The map that `compare` takes; None for no renames. Raises ``InputError`` for one that cannot be."""
    from trueline.comparison.match.name_maps import Rename
    from trueline.comparison.match.names import NameMap

    rules = tuple(Rename(old, new) for old, new in renames)
    return NameMap(renames=rules, source="the map made by hand", checked=(rules, ())) if rules else None


def _compared(path: str, ref: str, renames: Renames = ()) -> Compared:
    from dataclasses import replace

    from trueline.comparison.compare import compare
    from trueline.render.comparison.compare_call import recorded_call
    from trueline.render.comparison.compare_story import story_of
    from trueline.store.reader import Run

    run, reference = Run(path), Run(ref)
    comparison = compare(run, reference, names=name_map(renames))
    first = comparison.first
    calls = (
        (None, None) if first is None else (recorded_call(run, first.site), recorded_call(reference, first.ref_site))
    )
    return Compared(replace(comparison, rows=list(comparison.rows)), story_of(comparison, *calls))
