"""Fail every call of the writers, cut the power after each, open a long Run, and rewrite README.md beside this.

python -m benchmarks.durability [--stride 1] [--steps 200000]
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path

import pyarrow as pa
from benchmarks.durability import jobs, power
from benchmarks.durability.disk import Disk
from benchmarks.place import head

from trueline.analyze.check_run import check
from trueline.schema.run_manifest import Manifest, RankEnv
from trueline.store import merging
from trueline.store.durable import put_file
from trueline.store.layout import WORKERS_DIR, PartName
from trueline.store.parts import encode_part
from trueline.store.reader import Run
from trueline.store.rows import WORKER_SCHEMA
from trueline.store.writer import RunWriter
from trueline.view.report import write_report

STEPS_A_PART = 100


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


def long_run(path: Path, *, steps: int, ranks: int = 2, merges: bool) -> dict[str, float]:
    """Parts of a Run, and the CPU seconds to open, check and report it; its parts are sealed as a job would."""
    for rank in range(ranks):
        writer = RunWriter(path, rank=rank)
        manifest = Manifest(world_size=ranks, data_parallel_ranks=list(range(ranks)), adapter="ddp", started_at="then")
        writer.describe(manifest if rank == 0 else None, RankEnv(rank=rank, world_size=ranks))
        pile = merging.Pile(str(path / WORKERS_DIR))
        for sequence in range(steps // STEPS_A_PART):
            part = _seal(path / WORKERS_DIR, rank, sequence, ranks)
            if merges:
                pile.add(part)
        writer.close()
    spent = {"parts": float(len(list((path / WORKERS_DIR).iterdir())))}
    begin = time.process_time()
    run = Run(path)
    spent["open"] = time.process_time() - begin
    assert len(run.steps) == steps, run.problems[:3]
    if merges:
        begin = time.process_time()
        check(run)
        spent["check"] = time.process_time() - begin
        begin = time.process_time()
        write_report([str(path)], path.with_suffix(".html"))
        spent["report"] = time.process_time() - begin
    return spent


def _seal(folder: Path, rank: int, sequence: int, ranks: int) -> PartName:
    steps = range(sequence * STEPS_A_PART, (sequence + 1) * STEPS_A_PART)
    columns = {
        "step": list(steps),
        "rank": [rank] * STEPS_A_PART,
        "loss": [2.0 + 5 / (step + 10) + (step * 7919 + rank * 104729) % 1000 / 5000 for step in steps],
        "grad_norm": [1.0 + (step * 104729 + rank * 7919) % 1000 / 5000 for step in steps],
        "cosine_mean": [0.5] * STEPS_A_PART,
        "sample_digests": [[step * ranks + rank + 1] for step in steps],
    }
    arrays = [pa.array(values, WORKER_SCHEMA.field(name).type) for name, values in columns.items()]
    data = encode_part(pa.table(arrays, names=list(columns)))
    part = PartName(rank, sequence, zlib.crc32(data))
    put_file(str(folder / str(part)), data)
    return part


def main() -> None:
    """Try all of it and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200_000)
    chosen = parser.parse_args()
    page = head(
        "What a Run survives",
        command=f"python -m benchmarks.durability --stride {chosen.stride} --steps {chosen.steps}",
    )
    lines = ["| what | tried | false or untold |", "|---|---|---|"]
    for what, tries in (("a call failed", refused), ("the power went", power_cuts)):
        for records in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                tried, wrong = tries(Path(folder), records=records, stride=chosen.stride * (4 if records else 1))
            written = "rows and recorded steps" if records else "rows"
            lines.append(f"| {what}, {written} | {tried} | {len(wrong)} |")
            for line, times in Counter(wrong).items():
                print(times, line)
    lines += ["", f"A Run of {chosen.steps:,} steps on 2 ranks, in seconds of CPU time:", ""]
    lines += ["| its parts | files | open | check | report |", "|---|---|---|---|---|"]
    for merges in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            spent = long_run(Path(folder) / "run", steps=chosen.steps, merges=merges)
        cells = [f"{spent[name]:.1f}" if name in spent else "" for name in ("open", "check", "report")]
        lines.append(f"| {'merged' if merges else 'as sealed'} | {spent['parts']:.0f} | {' | '.join(cells)} |")
    (Path(__file__).parent / "README.md").write_text("\n".join([page, "", *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
