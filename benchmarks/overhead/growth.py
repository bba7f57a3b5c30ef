"""How the work of one sampled step grows with N workers, simulated: what a rank computes from the sums, and what it
sends.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np
from benchmarks import page

from trueline.capture.step import shared_columns

GROUPS, LENGTH = 16, 521
WORKERS = (2, 8, 64, 256, 1024)
REPEATS = 30

INTRODUCTION = (
    f"Simulated on one core: {GROUPS} groups, sketches of {LENGTH} numbers, median of {REPEATS}. The sum is one "
    f"all-reduce; its length grows by {len(shared_columns.SCALARS)} numbers a worker. N × N cosines are made when a "
    "Run is read, on steps whose sketches were kept, for up to 64 workers."
)


def measure(*, ranks: int, rounds: int, folder: Path) -> str:
    """The table, as Markdown."""
    rows = []
    for workers in WORKERS:
        size, seconds = derive_one(workers)
        matrix = f"{1000 * matrix_one(workers):.2f} ms" if workers <= 64 else "not made"
        rows.append([workers, size, f"{1000 * seconds:.2f} ms", matrix])
    found = page.table(["N", "numbers in the sum", "derive a row, per rank", "N × N matrix, per kept step"], rows)
    return f"## Growth with the number of workers\n\n{INTRODUCTION}\n\n{found}"


def derive_one(workers: int) -> tuple[int, float]:
    """Length of the summed vector, and seconds to derive one rank's columns from it."""
    rng = np.random.default_rng(0)
    sketch = rng.standard_normal((GROUPS, LENGTH))
    norm = np.linalg.norm(sketch, axis=1)
    own = shared_columns.Measurement(local_norm=norm, local=sketch, reduced=sketch, used=sketch)
    packed = shared_columns.pack(own, reduced_norm2=norm**2, sharded=False, replicas=1)
    scalars = np.array([shared_columns.scalars(own, plain=1e-3, sampled=1e-2, step_s=1.0)] * workers)
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        sums = shared_columns.unpack(scalars, packed * workers, groups=GROUPS, k=LENGTH)
        shared_columns.columns(
            own,
            sums,
            reduced_norm2=norm**2,
            sharded=False,
            numel=np.full(GROUPS, 1e6),
            dtype="torch.float32",
            roundings=workers + 1,
        )
        seconds.append(time.perf_counter() - begin)
    return scalars.size + packed.size, statistics.median(seconds)


def matrix_one(workers: int) -> float:
    """Seconds for all N x N cosines from the sketches of one step."""
    sketches = np.random.default_rng(0).standard_normal((workers, GROUPS * LENGTH)).astype(np.float32)
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        units = sketches / np.linalg.norm(sketches, axis=1, keepdims=True)
        _ = units @ units.T
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)
