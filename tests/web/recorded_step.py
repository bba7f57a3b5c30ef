"""A recorded step made by hand, as large as a test needs it: blocks of modules with calls in them."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trueline.schema.columns.records import STAT_NAMES, StackRecord, StepRecords
from trueline.store.file_names import RECORDS_DIR, STACKS_DIR
from trueline.store.writer import RunWriter

OPS = ("norm.rms_norm", "attn.linear", "attn.softmax", "mlp.linear", "mlp.gelu")


def write_step(path: Path, *, num_blocks: int, step: int = 3, nan_in: int | None = None, prefix: str = "") -> Path:
    """Add a recorded step of rank 0 to the Run at ``path``: the model, and in each block its module and ``OPS``, each
    with an input, which is what the one before returned, and an output; the ``nan_in``-th block's softmax gives NaN.
    ``prefix`` comes before names of blocks.
    """
    rows = [row("Model", "module", "", "in0", api="my.Model")]
    for block in range(num_blocks):
        name = f"{prefix}layers.{block}"
        rows.append(row(name, "module", "Model", "in0", api="my.Block", given_by=rows))
        for op in OPS:
            called = (f"{name}.{op}", "op", name)
            bad = block == nan_in and op == "attn.softmax"
            rows.append(row(*called, "in0", api=f"torch.{op.rpartition('.')[2]}", given_by=rows))
            rows.append(row(*called, "out0", api=f"torch.{op.rpartition('.')[2]}", bad=bad))
        rows.append(row(name, "module", "Model", "out0", api="my.Block", given_by=rows))
    rows.append(row("Model", "module", "", "out0", api="my.Model", given_by=rows))
    return write_rows(path, rows, step=step)


def write_rows(path: Path, rows: Sequence[dict[str, Any]], *, step: int = 3, rank: int = 0) -> Path:
    """Add a recorded step of a rank with ``rows``, as ``row`` makes them, to the Run at ``path``."""
    columns = {name: [each[name] for each in rows] for name in rows[0] if name not in ("bad",)}
    own = [place for place, each in enumerate(rows) if each["same_as"] is None]
    stats_MS = np.array([_statistics(place, rows[place]["bad"]) for place in own])
    with tempfile.TemporaryDirectory() as apart:  # a writer takes no Run that is there
        writer = RunWriter(Path(apart, "run"), rank=rank, creates=True)
        writer.write(StackRecord(0, ("/site-packages/torch/nn.py:1 forward", "train.py:34 Block.forward")))
        writer.write(StepRecords(step, columns, np.array(own, dtype=np.int32), stats_MS))
        writer.close()
        for folder in (RECORDS_DIR, STACKS_DIR):
            shutil.copytree(Path(apart, "run", folder), path / folder, dirs_exist_ok=True)
    return path


def num_calls(num_blocks: int) -> int:
    """How many calls that makes."""
    return 1 + num_blocks * (1 + len(OPS))


def row(
    name: str,
    kind: str,
    module: str,
    slot: str,
    *,
    api: str,
    bad: bool = False,
    given_by: Sequence[dict[str, Any]] = (),
    shape: tuple[int, ...] = (2, 8),
) -> dict[str, Any]:
    """A row, whose value is the last of ``given_by``, or one of its own."""
    before = None if not given_by else given_by[-1]["same_as"]
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
        "shape": shape,
        "numel": math.prod(shape),
        "same_as": before if before is not None or not given_by else len(given_by) - 1,
        "bad": bad,
    }


def _statistics(place: int, bad: bool) -> list[float]:
    told = {"nan": 4.0 if bad else 0.0, "zero": 2.0, "min": -1.0 - place % 7, "max": 3.0, "sum": 8.0, "sum_sq": 16.0}
    return [told.get(name, 0.0) for name in STAT_NAMES]
