"""What opening and checking a Run takes, in a process that does nothing else."""

from __future__ import annotations

import resource
import time
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

from trueline.judge import check_run, following
from trueline.judge.engines import Engine
from trueline.judge.registry import installed_checks
from trueline.store.log.part_files import known_parts
from trueline.store.reader import Run


def judge(
    path: str, *, follows: bool = True, without: int = 0, engine: Engine = "here", anew: bool = False
) -> dict[str, float]:
    """CPU seconds to open the Run and to run every check, those of both on the clock, and the peak of memory of the
    largest process in MiB; no finding may come.

    ``follows`` False: every check is shown all steps. ``without``: so many of the last steps are left out. ``anew``:
    what was kept of earlier looks is removed first.
    """
    for kept in kept_of(Path(path)) if anew else ():
        kept.unlink()
    installed_checks()  # which imports them
    begin, clock = time.process_time(), time.perf_counter()
    run = Run(path, parts=known_parts(path) if follows else None)
    opened = time.process_time()
    run = run.before(int(run.steps[-without])) if without else run
    alone = mock.patch.object(check_run, "earlier_judgements", return_value=None) if not follows else nullcontext()
    with alone:
        begin_check = time.process_time()
        report = check_run.check(run, engine=engine)
        took = {"open": opened - begin, "check": time.process_time() - begin_check + _of_others()}
        clock = time.perf_counter() - clock
    assert not report.found, report.verdict.line
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    return {**took, "both": took["open"] + took["check"], "clock": clock, "MiB": peak}


def in_pieces(path: str, num: int) -> dict[str, float]:
    """CPU seconds of the pieces that a first look is divided into for ``num`` workers, worked out one after the other:
    of all, of the ``longest``, and of the ``rest``, which waits for all of them and takes no account of the length.
    """
    checks = installed_checks()
    run = Run(path)
    known = following.Followed()
    spent: list[float] = []
    for parts in following.parts_ahead(run, checks, known, num):
        found: list[following.Followed] = []
        for part in parts:
            begin = time.process_time()
            found.append(following.judged_ahead(run, checks, known, part))
            spent.append(time.process_time() - begin)
        known = known.with_these(following.join_parts(found))
    begin = time.process_time()
    following.follow(run, checks, known)
    return {"num": len(spent), "all": sum(spent), "longest": max(spent), "rest": time.process_time() - begin}


def kept_of(run: Path) -> list[Path]:
    """The files that looks at a Run keep in it."""
    return [each for each in (run / "judged.json", run / "parts.json", *run.glob("judged/*")) if each.exists()]


def _of_others() -> float:
    """CPU seconds of the processes that this one started and that ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
