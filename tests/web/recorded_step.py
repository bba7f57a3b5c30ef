"""A recorded step made by hand, as large as a test needs it: blocks of modules with calls in them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from trueline.schema.columns.records import STAT_NAMES, StackRecord, StepRecords
from trueline.store.file_names import RECORDS_DIR, STACKS_DIR
from trueline.store.writer import RunWriter

OPS = ("norm.rms_norm", "attn.linear", "attn.softmax", "mlp.linear", "mlp.gelu")


def write_step(path: Path, *, num_blocks: int, step: int = 3, nan_in: int | None = None, prefix: str = "") -> Path:
    """Add a recorded step of rank 0 to the Run at ``path``: the model, and in each block its module and ``OPS``, each
    with an input and an output; the ``nan_in``-th block's softmax gives NaN. ``prefix`` comes before names of blocks.
    """
    rows = [_row("Model", "module", "", slot, api="my.Model") for slot in ("in0", "out0")]
    for block in range(num_blocks):
        name = f"{prefix}layers.{block}"
        inside: list[dict[str, Any]] = []
        for op in OPS:
            bad = block == nan_in and op == "attn.softmax"
            inside += [
                _row(f"{name}.{op}", "op", name, slot, api=f"torch.{op.rpartition('.')[2]}", bad=bad and slot == "out0")
                for slot in ("in0", "out0")
            ]
        rows[-1:-1] = [
            _row(name, "module", "Model", "in0", api="my.Block"),
            *inside,
            _row(name, "module", "Model", "out0", api="my.Block"),
        ]
    columns = {name: [row[name] for row in rows] for name in rows[0] if name not in ("bad",)}
    stats_MS = np.array([_statistics(place, row["bad"]) for place, row in enumerate(rows)])
    with tempfile.TemporaryDirectory() as apart:  # a writer takes no Run that is there
        writer = RunWriter(Path(apart, "run"), rank=0)
        writer.write(StackRecord(0, ("/site-packages/torch/nn.py:1 forward", "train.py:34 Block.forward")))
        writer.write(StepRecords(step, columns, np.arange(len(rows), dtype=np.int32), stats_MS))
        writer.close()
        for folder in (RECORDS_DIR, STACKS_DIR):
            shutil.copytree(Path(apart, "run", folder), path / folder)
    return path


def num_calls(num_blocks: int) -> int:
    """How many calls that makes."""
    return 1 + num_blocks * (1 + len(OPS))


def _row(name: str, kind: str, module: str, slot: str, *, api: str, bad: bool = False) -> dict[str, Any]:
    return {
        "micro": 0,
        "phase": "fwd",
        "name": name,
        "call": 0,
        "slot": slot,
        "kind": kind,
        "api": api,
        "module": module,
        "args": '{"args": [{"in": "in0"}], "kwargs": {"dim": -1}}' if slot == "in0" else None,
        "stack": 0,
        "dtype": "float32",
        "shape": (2, 8),
        "numel": 16,
        "bad": bad,
    }


def _statistics(place: int, bad: bool) -> list[float]:
    told = {"nan": 4.0 if bad else 0.0, "zero": 2.0, "min": -1.0 - place % 7, "max": 3.0, "sum": 8.0, "sum_sq": 16.0}
    return [told.get(name, 0.0) for name in STAT_NAMES]
