"""What it takes to find the steps in which two runs differ, and to align one: 5 million rows, and 16,000.

    python -m benchmarks.compare.join [--rows 5000000]

Rows are those of `benchmarks.store.recorded_step`: 1,500 a step, half of them `same_as` the row before, the others with
random statistics and fingerprints. One step in fifty differs in one statistic of one row.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.page import arguments, head, table
from benchmarks.store.recorded_step import NUM_ROWS, structure

from trueline.comparison.match.align import align
from trueline.comparison.match.names import NameMap
from trueline.comparison.prefilter import differing_steps
from trueline.judge.recorded.step_values import read_step
from trueline.schema.columns.records import STAT_NAMES, StepRecords
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.store.reader import Run
from trueline.store.writer import RunWriter

EVERY = 50
"""Steps from one that differs to the next."""

ALIGNED_ROWS = 16_000


def record(path: Path, num_steps: int, *, repeats: int = 1, differs: bool = False) -> Run:
    """A Run of so many steps, of ``repeats`` times 1,500 rows each."""
    columns = {name: tuple(values) for name, values in _repeated(structure(), repeats).items()}
    measured_M = np.arange(0, repeats * NUM_ROWS, 2, dtype=np.int32)
    writer = RunWriter(path, rank=0)
    writer.describe(Manifest(), RankEnv())
    for step in range(num_steps):
        draw = np.random.default_rng(step)
        stats_MS = draw.normal(size=(len(measured_M), len(STAT_NAMES)))
        stats_MS[:, :5] = draw.integers(0, 100, size=(len(measured_M), 5))
        if differs and step % EVERY == EVERY - 1:
            stats_MS[3, STAT_NAMES.index("sum")] += 1e-9
        fingerprint_M = draw.integers(0, 2**64, size=len(measured_M), dtype=np.uint64)
        writer.write(StepRecords(step, columns, measured_M, stats_MS, fingerprint_M))
    writer.close()
    return Run(path)


def _repeated(columns: dict[str, list[Any]], repeats: int) -> dict[str, list[Any]]:
    """The rows again and again, each time as those of another layer."""
    found: dict[str, list[Any]] = {name: [] for name in columns}
    for repeat in range(repeats):
        for name, values in columns.items():
            if name == "same_as":
                values = [None if value is None else value + repeat * NUM_ROWS for value in values]
            elif name in ("name", "module"):
                values = [f"stage.{repeat}.{value}" for value in values]
            found[name] += values
    return found


def least(run: Callable[[], Any], *, repeats: int = 3) -> tuple[float, float]:
    """The least CPU and wall seconds of several runs."""
    taken: list[tuple[float, float]] = []
    for _ in range(repeats):
        start, cpu_start = time.perf_counter(), time.process_time()
        run()
        taken.append((time.process_time() - cpu_start, time.perf_counter() - start))
    return min(cpu for cpu, _ in taken), min(wall for _, wall in taken)


def main() -> None:
    """Print a table of what was measured."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of each of the two runs")
    num_steps = max(parser.parse_args().rows // NUM_ROWS, 1)
    title = head("Joining two runs", command=f"python -m benchmarks.compare.join --rows {num_steps * NUM_ROWS}")
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        mine, theirs = (record(Path(folder, name), num_steps, differs=name == "run") for name in ("run", "ref"))
        assert len(differing_steps(mine, theirs)) == num_steps // EVERY
        cpu_s, wall_s = least(lambda: differing_steps(mine, theirs))
        size = f"{num_steps * NUM_ROWS:,} a run"
        rows.append(["find the steps that differ", size, f"{cpu_s:.2f} s", f"{wall_s:.2f} s"])
    with tempfile.TemporaryDirectory() as folder:
        run = record(Path(folder), 1, repeats=-(-ALIGNED_ROWS // NUM_ROWS))
        sides = read_step(run, 0, 0), read_step(run, 0, 0)
        assert not any(pair.reason for pair in align(*sides, NameMap()).pairs)
        size = f"{len(sides[0].values):,} a side"
        for what, task in (
            ("read one step of one run", lambda: read_step(run, 0, 0)),
            ("align one step", lambda: align(*sides, NameMap())),
        ):
            cpu_s, wall_s = least(task)
            rows.append([what, size, f"{cpu_s:.2f} s", f"{wall_s:.2f} s"])
    print(title)
    print("\n" + table(["", "rows", "CPU time", "wall time"], rows, right=(1, 2, 3)))


if __name__ == "__main__":
    main()
