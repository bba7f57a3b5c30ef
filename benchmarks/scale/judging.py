"""What opening and checking a Run takes, in a process that does nothing else."""

from __future__ import annotations

import resource
import time
from contextlib import nullcontext
from unittest import mock

from trueline.analyze import check_run
from trueline.analyze.registry import installed_checks
from trueline.store.reader import Run


def judge(path: str, *, follows: bool = True, without: int = 0, followers: bool = False) -> dict[str, float]:
    """CPU seconds to open the Run and to run every check, and the peak of memory in MiB; no finding may come.

    ``follows`` False: every check is shown all steps. ``without``: so many of the last steps are left out.
    ``followers``: only the checks that can follow are run.
    """
    begin = time.process_time()
    run = Run(path)
    opened = time.process_time()
    run = run.before(int(run.steps[-without])) if without else run
    chosen = [each for each in installed_checks() if each.follows is not None or not followers]
    alone = mock.patch.object(check_run, "known_of", return_value=None) if not follows else nullcontext()
    with alone, mock.patch.object(check_run, "installed_checks", return_value=chosen):
        begin_check = time.process_time()
        report = check_run.check(run)
    assert not report.found, report.verdict.line
    return {
        "open": opened - begin,
        "check": time.process_time() - begin_check,
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
