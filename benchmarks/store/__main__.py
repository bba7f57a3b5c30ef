"""Measure what writing one row, one recorded step and reading a whole Run cost, and rewrite README.md beside this.

python -m benchmarks.store [--steps 10000] [--ranks 8]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.page import arguments, head, table, write
from benchmarks.store import recorded_step

from trueline.schema.columns.table import worker_columns
from trueline.store.reader import Run
from trueline.store.writer import RunWriter

ABOUT = """\
A typical row has 25 scalar columns, three lists of 16 float64, one of 300 float64 and 8 uint64 digests. On a busy
machine the wall times of whatever is longer than a scheduler's time slice are mostly waiting: the CPU times are what
the code costs."""

ABOUT_SEALING = """\
A write that seals merges and compresses 100 steps and waits for two fsyncs; the other 99 of 100 append one frame."""

LISTS_OF_16 = ("group_grad_norms", "group_reduced_norms", "group_reduce_residual")
SCALARS = [column.name for column in worker_columns() if column.type in ("float64", "int64", "int32", "uint64")][:25]


def typical_row(step: int, rng: np.random.Generator) -> dict[str, Any]:
    integers = {column.name for column in worker_columns() if column.type in ("int64", "int32", "uint64")}
    row: dict[str, Any] = {
        name: int(rng.integers(0, 2**31)) if name in integers else float(rng.normal()) for name in SCALARS
    }
    row |= {name: rng.normal(size=16) for name in LISTS_OF_16}
    row["param_grad_norms"] = rng.normal(size=300)
    row["sample_digests"] = rng.integers(0, 2**63, size=8, dtype=np.uint64)
    row["step"] = step
    del row["rank"]
    return row


def time_writes(path: Path, *, rank: int, steps: int) -> tuple[np.ndarray, float]:
    """[steps] wall seconds that each call of ``write`` took, and the CPU seconds of all of them."""
    rng = np.random.default_rng(rank)
    taken_s = np.zeros(steps)
    cpu_s = 0.0
    writer = RunWriter(path, rank=rank)
    for step in range(steps):
        row = typical_row(step, rng)
        start, cpu_start = time.perf_counter(), time.process_time()
        writer.write(row)
        cpu_s += time.process_time() - cpu_start
        taken_s[step] = time.perf_counter() - start
    writer.close()
    return taken_s, cpu_s


def time_reads(path: Path) -> dict[str, tuple[float, float]]:
    """Wall and CPU seconds for opening the Run, and for the first use of columns after that."""
    steps: dict[str, Callable[[Run | None], Any]] = {
        "open": lambda _: Run(path),
        "pivot('loss')": lambda run: run.pivot("loss"),
        "stack('param_grad_norms'), 300 values": lambda run: run.stack("param_grad_norms"),
        "query(...), which merges every column": lambda run: run.query(
            "select rank, avg(loss) from workers group by 1"
        ),
    }
    run, taken_s = None, {}
    for name, step in steps.items():
        start, cpu_start = time.perf_counter(), time.process_time()
        result = step(run)
        taken_s[name] = (time.perf_counter() - start, time.process_time() - cpu_start)
        run = run or result
    return taken_s


def tables(*, steps: int, ranks: int) -> str:
    """What writing and reading a Run of this size took, as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        writes = [time_writes(path, rank=rank, steps=steps) for rank in range(ranks)]
        size_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        reads_s = time_reads(path)
    taken_s = np.concatenate([wall_s for wall_s, _ in writes])
    cpu_s = sum(cpu_s for _, cpu_s in writes)
    writing = [
        ("median", np.median(taken_s)),
        ("99th percentile", np.quantile(taken_s, 0.99)),
        ("mean, sealing every 100 steps included", taken_s.mean()),
        ("mean CPU time, sealing included", cpu_s / len(taken_s)),
        ("mean of the slowest 1 %, the writes that seal", np.sort(taken_s)[-len(taken_s) // 100 :].mean()),
    ]
    reading = [[name, f"{wall_s:.2f}", f"{cpu_s:.2f}"] for name, (wall_s, cpu_s) in reads_s.items()]
    return "\n\n".join(
        [
            table(["write, one row", "ms"], [[name, f"{value * 1e3:.3f}"] for name, value in writing]),
            table([f"read, {ranks} ranks x {steps} steps", "s", "CPU s"], reading),
            f"{size_bytes / len(taken_s):.0f} bytes a row on disk, {size_bytes / 1e6:.0f} MB in all",
        ]
    )


def main() -> None:
    """Measure and write the page."""
    chosen = arguments(__doc__, steps=10_000, ranks=8).parse_args()
    command = f"python -m benchmarks.store --steps {chosen.steps} --ranks {chosen.ranks}"
    parts = [
        head("What the store costs", command=command),
        ABOUT,
        tables(steps=chosen.steps, ranks=chosen.ranks),
        ABOUT_SEALING,
        "## A recorded step",
        recorded_step.ABOUT,
        recorded_step.table(),
    ]
    write(__file__, *parts)


if __name__ == "__main__":
    main()
