"""Calls in processes forked from this one, which has imported everything: a crash is a result, and not the end."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

Work = tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]


def results_of(works: Sequence[Work], num_jobs: int, limit_s: float) -> Iterator[dict[str, Any]]:
    """What each call returns as soon as it does. One that raised, crashed or took longer than ``limit_s`` returns
    ``{"error": text}`` with what its first argument is called.
    """
    fork = multiprocessing.get_context("fork")
    left, living = list(reversed(works)), {}
    while left or living:
        while left and len(living) < num_jobs:
            work = left.pop()
            here, there = fork.Pipe(duplex=False)
            process = fork.Process(target=_call, args=(there, *work))
            process.start()
            there.close()
            living[here] = process, work, time.monotonic() + limit_s
        for here in wait(list(living), timeout=1.0):
            process, work, _ = living.pop(here)
            yield _received(here, work)
            process.join()
        for here, (process, work, end) in list(living.items()):
            if time.monotonic() > end:
                del living[here]
                process.kill()
                process.join()
                yield _failed(work, f"longer than {limit_s:.0f} s")


def _call(there: Connection, call: Callable[..., dict[str, Any]], args: tuple[Any, ...]) -> None:
    try:
        there.send(call(*args))
    except Exception:
        there.send(_failed((call, args), traceback.format_exc()))


def _received(here: Connection, work: Work) -> dict[str, Any]:
    try:
        return here.recv()
    except EOFError:
        return _failed(work, "the process died")


def _failed(work: Work, text: str) -> dict[str, Any]:
    first = work[1][0]
    return {**(first.facts() if hasattr(first, "facts") else {"key": str(first)}), "verdict": "crash", "error": text}
