"""Fail calls of the writers, cut the power after them, read a long Run, watch many ranks, and rewrite README.md.

python -m benchmarks.durability [--stride 3] [--steps 200000] [--part failures|long|ranks]

With ``--part`` the table is printed, and README.md left as it is. ``--stride 1`` leaves nothing out.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks import page
from benchmarks.durability import long_run as long
from benchmarks.durability import many_ranks
from tests.durability import jobs, power
from tests.durability.disk import Disk

from trueline.store.file_names import WORKERS_DIR


class Log(logging.Handler):
    """What was logged since ``lines`` was cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def refused(folder: Path, *, records: bool, stride: int) -> tuple[int, list[str]]:
    """How often a call failed, and what was wrong after it."""
    log, wrong, tried = Log(), [], 0
    logger = logging.getLogger("trueline")
    logger.addHandler(log)
    logger.propagate = False
    for number, how in list(jobs.failures(folder / "whole", records=records))[::stride]:
        log.lines.clear()
        path = folder / f"{number}-{how}"
        told, calls = jobs.run_with_failure(path, number, how, logged=lambda: "\n".join(log.lines), records=records)
        tried += bool(calls)
        wrong += [f"{calls}: {line}" for line in told]
    return tried, wrong


def power_cuts(folder: Path, *, records: bool, stride: int) -> tuple[int, list[str]]:
    """After how many power cuts a Run was opened, and what was wrong with it."""
    made = folder / "made"
    made.mkdir()
    disk = Disk(str(made))
    with disk.mounted():
        jobs.write(made / "run", records=records, tell=lambda what: disk.log.append(("told", what)))
    cuts = [(end, way) for end in range(1, len(disk.log) + 1) for way in power.WAYS][::stride]
    wrong = []
    for end, way in cuts:
        told = [entry[1] for entry in disk.log[:end] if entry[0] == "told"]
        power.leave(disk.log[:end], made, folder / "left", way=way, seed=end)
        wrong += jobs.false_after_power_cut(folder / "left" / "run", told)
    return len(cuts), wrong


def long_run(path: Path, *, steps: int, merges: bool) -> dict[str, float]:
    """Files of a Run and their MiB, CPU seconds to open, check and report it, MiB of the report and of memory."""
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:
        apart.submit(long.write, path, steps=steps, merges=merges).result()
    files = list((path / WORKERS_DIR).iterdir())
    spent = {"parts": float(len(files)), "size": sum(file.stat().st_size for file in files) / 2**20}
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:  # whose memory is that of reading alone
        return spent | apart.submit(long.read, path, steps=steps, merges=merges).result()


def failures(chosen: argparse.Namespace) -> str:
    """A table of calls that failed and power cuts."""
    rows = []
    for what, tries in (("a call failed", refused), ("the power went", power_cuts)):
        for records in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                tried, wrong = tries(Path(folder), records=records, stride=chosen.stride * (4 if records else 1))
            written = "rows and recorded steps" if records else "rows"
            rows.append([f"{what}, {written}", tried, len(wrong)])
            for line, times in Counter(wrong).items():
                print(times, line)
    return page.table(["what", "tried", "false or unreported"], rows)


def long_runs(chosen: argparse.Namespace) -> str:
    """A table of what it takes to read a long Run."""
    columns = {
        "open": "open, s",
        "check": "check, s",
        "report": "report, s",
        "page": "page, MiB",
        "memory": "memory, MiB",
    }
    rows = []
    for merges in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            spent = long_run(Path(folder) / "run", steps=chosen.steps, merges=merges)
        cells = [f"{spent[name]:.1f}" if name in spent else "" for name in columns]
        sizes = [f"{spent['parts']:.0f}", f"{spent['size']:.0f}"]
        rows.append(["merged" if merges else "as sealed", *sizes, *cells])
    about = f"A Run of {chosen.steps:,} steps on {long.RANKS} ranks; seconds are of CPU time:"
    return f"{about}\n\n{page.table(['its parts', 'files', 'size, MiB', *columns.values()], rows)}"


def ranks(chosen: argparse.Namespace) -> str:
    """A table of what many ranks came to."""
    with tempfile.TemporaryDirectory() as folder:
        rows = many_ranks.tried(Path(folder))
    about = f"{many_ranks.NUM_RANKS} ranks, {many_ranks.NUM_STEPS} steps:"
    return f"{about}\n\n{page.table(['what', 'found'], rows)}"


PARTS = {"failures": failures, "long": long_runs, "ranks": ranks}


def main() -> None:
    """Try all of it and write the page, or one part and print it."""
    parser = page.arguments(__doc__, stride=3, steps=200_000)
    parser.add_argument("--part", choices=PARTS)
    chosen = parser.parse_args()
    command = f"python -m benchmarks.durability --stride {chosen.stride} --steps {chosen.steps}"
    if chosen.part:
        title = page.head(chosen.part, command=f"{command} --part {chosen.part}")
        print(f"{title}\n\n{PARTS[chosen.part](chosen)}")
        return
    title = page.head("What a Run survives", command=command)
    page.write(__file__, title, *(part(chosen) for part in PARTS.values()))


if __name__ == "__main__":
    main()
