"""What opening and checking a Run takes, in a process that does nothing else."""

from __future__ import annotations

import resource
import time
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

from trueline.judge import check_run
from trueline.judge.registry import installed_checks
from trueline.store.log.part_files import known_parts
from trueline.store.reader import Run


def judge(path: str, *, follows: bool = True, without: int = 0) -> dict[str, float]:
    """CPU seconds to open the Run and to run every check, those of both on the clock, and the peak of memory
    in MiB; no finding may come.

    ``follows`` False: every check is shown all steps. ``without``: so many of the last steps are left out.
    """
    installed_checks()  # which imports them
    begin, clock = time.process_time(), time.perf_counter()
    run = Run(path, parts=known_parts(path) if follows else None)
    opened = time.process_time()
    run = run.before(int(run.steps[-without])) if without else run
    alone = mock.patch.object(check_run, "earlier_judgements", return_value=None) if not follows else nullcontext()
    with alone:
        begin_check = time.process_time()
        report = check_run.check(run)
        took = {"open": opened - begin, "check": time.process_time() - begin_check}
        clock = time.perf_counter() - clock
    assert not report.has_incidents, report.verdict.line
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {**took, "both": took["open"] + took["check"], "clock": clock, "MiB": peak}


def kept_of(run: Path) -> list[Path]:
    """The files that looks at a Run keep in it."""
    return [each for each in (run / "judged.json", run / "parts.json", *run.glob("judged/*")) if each.exists()]
