"""What storing one recorded step costs: bytes on disk once sealed, CPU time of both threads, waiting in ``write``."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import page

from trueline.schema.columns.records import PROJECTION_NAMES, STAT_NAMES, StepRecords
from trueline.store.reader import Run
from trueline.store.writer import RunWriter

ABOUT = """\
A recorded step has 1,500 rows of operators in a model of four layers, half of which are the `same_as` the row before;
the others have all statistics and a fingerprint, and random ones: 750 x 13 numbers that hardly compress. `Columns`
says whether the recorder hands over the columns of the step before again, new lists that are equal, or lists that
differ in every step. CPU time is that of the whole process from the first write to the end of `close`, over the steps,
without making the rows; `write` is the wall time that the training thread spends in it. The least of several
repetitions."""

NUM_ROWS = 1500
OPS = ("linear", "add", "mul", "softmax", "matmul", "rms_norm", "silu", "view")


def structure(shift: int = 0) -> dict[str, list[Any]]:
    """The columns of a step that are not statistics; another ``shift``, other calls in another order."""
    columns: dict[str, list[Any]] = {}
    for row in range(NUM_ROWS):
        site = row // 3 + shift
        module = f"model.layers.{site // 24 % 4}.{('self_attn', 'mlp', 'input_layernorm')[site // 8 % 3]}"
        op = OPS[site % 8]
        same = row % 2 == 1
        shape = (4, 128, (256, 688, 1000)[site % 3])
        values = {
            "micro": 0,
            "phase": "fwd" if row < NUM_ROWS // 2 else "bwd",
            "name": f"{module}.{op}",
            "call": site // 96,
            "slot": ("in0", "in1", "out0")[row % 3],
            "kind": "op",
            "api": f"torch.nn.functional.{op}",
            "module": module,
            "args": None if row % 3 else json.dumps({"dim": -1, "eps": 1e-6, "size": [4, 128, site % 7]}),
            "stack": site % 50,
            "flags": "",
            "dtype": "float32",
            "shape": shape,
            "same_as": row - 1 if same else None,
            "numel": None if same else int(np.prod(shape)),
        }
        for name, value in values.items():
            columns.setdefault(name, []).append(value)
    return columns


def steps(kind: str, num_steps: int) -> Iterator[StepRecords]:
    """Recorded steps whose columns are those of the step before: ``same`` objects, ``equal`` ones, or ``other``."""
    rng = np.random.default_rng(0)
    columns = structure()
    measured_M = np.arange(0, NUM_ROWS, 2, dtype=np.int32)
    for step in range(num_steps):
        stats_MS = np.zeros((len(measured_M), len(STAT_NAMES)))
        stats_MS[:, 3] = rng.integers(0, 50, len(measured_M)) * (rng.random(len(measured_M)) < 0.2)
        # Extremes are elements, so float32; sums have the precision of float64.
        stats_MS[:, 5:7] = np.sort(rng.normal(size=(len(measured_M), 2)).astype(np.float32), axis=1)
        stats_MS[:, 7] = rng.normal(size=len(measured_M))
        stats_MS[:, 8] = rng.chisquare(8, size=len(measured_M))
        stats_MS[:, 9:] = rng.normal(size=(len(measured_M), len(PROJECTION_NAMES)))
        fingerprint_M = rng.integers(0, 2**64, size=len(measured_M), dtype=np.uint64)
        yield StepRecords(step, columns, measured_M, stats_MS, fingerprint_M)
        if kind == "equal":
            columns = {name: list(column) for name, column in columns.items()}
        elif kind == "other":
            columns = structure(step + 1)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one step: bytes on disk, CPU seconds of the process, wall seconds in ``write``."""

    size_bytes: float
    cpu_s: float
    write_s: float


def measure(kind: str, num_steps: int) -> Cost:
    """What ``num_steps`` cost, each."""
    made = list(steps(kind, num_steps))
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter(Path(folder) / "run", rank=0)
        cpu_start, write_s = time.process_time(), 0.0
        for records in made:
            start = time.perf_counter()
            writer.write(records)
            write_s += time.perf_counter() - start
        writer.close()
        cpu_s = time.process_time() - cpu_start
        size_bytes = Run(writer.path).size_bytes("records")
    return Cost(size_bytes / num_steps, cpu_s / num_steps, write_s / num_steps)


def table(repeats: int = 5) -> str:
    """The costs as Markdown."""
    rows = []
    for num_steps, kinds in ((1, ("same",)), (100, ("same", "equal", "other"))):
        for kind in kinds:
            measure(kind, 1)
            costs = [measure(kind, num_steps) for _ in range(repeats)]
            cpu_s, write_s = min(cost.cpu_s for cost in costs), min(cost.write_s for cost in costs)
            cost = [f"{costs[0].size_bytes / 1e3:.1f}", f"{cpu_s * 1e3:.2f}", f"{write_s * 1e3:.3f}"]
            rows.append([num_steps, kind if num_steps > 1 else "first", *cost])
    return page.table(["recorded steps", "columns", "KB a step on disk", "CPU ms a step", "ms in `write`"], rows)
