"""What opening and checking a Run takes, in a process that does nothing else."""

from __future__ import annotations

import resource
import time


def judge(path: str) -> dict[str, float]:
    """CPU seconds to open the Run and to run every check, and the peak of memory in MiB; no finding may come."""
    from trueline.analyze.check_run import check
    from trueline.store.reader import Run

    begin = time.process_time()
    run = Run(path)
    opened = time.process_time()
    report = check(run)
    assert not report.found, report.verdict.line
    return {
        "open": opened - begin,
        "check": time.process_time() - opened,
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
