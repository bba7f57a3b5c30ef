"""Runs with made-up numbers, for tests of what reads them: trained by nobody, and in the files that the writer leaves,
each rank's rows in one part at once, as the journal takes 7 ms a row.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trueline.schema.files.run_manifest import GroupSpec, Manifest, RankEnv
from trueline.schema.finding import Finding
from trueline.store.file_names import WORKERS_DIR, PartName
from trueline.store.log.parts import encode_part
from trueline.store.records.arrays import from_values
from trueline.store.rows import worker_schema
from trueline.store.writer import RunWriter

SKETCH_LENGTH = 127

Change = Callable[[int, int, dict[str, Any]], None]
"""Called with step, rank and the row that is about to be written."""


def write_run(
    path: Path,
    *,
    num_ranks: int = 4,
    num_steps: int = 40,
    every: int = 1,
    matrix_every: int = 20,
    change: Change | None = None,
    env: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None = None,
    findings: tuple[Finding, ...] = (),
    notes: tuple[str, ...] = (),
    seed: int = 0,
    rows_a_part: int | None = None,
) -> Path:
    """A healthy-looking Run at ``path``: losses that fall, gradients with a small common part, sketches now and then.

    ``env`` overrides fields of every RankEnv, or of that of the rank it is called with. ``change`` may edit each row;
    ``findings`` are left as live ones. Samples are never repeated.
    """
    rng = np.random.default_rng(seed)
    rows: list[list[dict[str, Any]]] = [[] for _ in range(num_ranks)]
    writers = [RunWriter(path, rank=rank) for rank in range(num_ranks)]
    for rank, writer in enumerate(writers):
        fields = env(rank) if callable(env) else env or {}
        writer.describe(_manifest(num_ranks, notes) if rank == 0 else None, _env(rank, num_ranks, fields))
    for step in range(num_steps):
        gradients_NK = 0.3 * rng.normal(size=SKETCH_LENGTH) + rng.normal(size=(num_ranks, SKETCH_LENGTH))
        for rank in range(num_ranks):
            row = {"step": step, "step_s": 0.8, "own_s": 0.004, "epoch": 0, "loss": 6 * 0.99**step + rng.normal() / 20}
            row["sample_digests"] = [step * num_ranks + rank + 1]
            if step % every == 0:
                row |= _gradient_signals(gradients_NK, rank)
            if matrix_every and step % matrix_every == 0:
                row["sketch"] = gradients_NK[rank].astype(np.float32).tolist()
            if change is not None:
                change(step, rank, row)
            rows[rank].append(row)
    for finding in findings:
        writers[0].write(finding)
    for rank, writer in enumerate(writers):
        writer.close()
        most = rows_a_part or max(len(rows[rank]), 1)
        for sequence, begin in enumerate(range(0, len(rows[rank]), most)):
            write_part(path, rank, rows[rank][begin : begin + most], sequence=sequence)
    return path


def write_part(path: Path, rank: int, rows: Sequence[Mapping[str, Any]], *, sequence: int = 0) -> None:
    """Add the rows of ``rank``, each with its ``step``, to the Run at ``path``: the part that sealing them leaves."""
    names = {name for row in rows for name, value in row.items() if value is not None} | {"rank"}
    columns = {
        column.name: from_values([rank if column.name == "rank" else row.get(column.name) for row in rows], column.type)
        for column in worker_schema()
        if column.name in names
    }
    if rows:
        _put_part(path, rank, pa.table(columns), sequence)


def _put_part(path: Path, rank: int, table: pa.Table, sequence: int = 0) -> None:
    data = encode_part(table)
    (path / WORKERS_DIR / str(PartName(rank, sequence, zlib.crc32(data)))).write_bytes(data)


def _gradient_signals(gradients_NK: np.ndarray, rank: int) -> dict[str, float]:
    units_NK = gradients_NK / np.linalg.norm(gradients_NK, axis=1, keepdims=True)
    cosines_NN = units_NK @ units_NK.T
    num_ranks = len(units_NK)
    signals = {"grad_norm": float(np.linalg.norm(gradients_NK[rank])), "grad_nonfinite": 0.0}
    if num_ranks > 1:
        others_K = gradients_NK.sum(axis=0) - gradients_NK[rank]
        signals["cosine_others"] = float(units_NK[rank] @ others_K / np.linalg.norm(others_K))
        signals["cosine_pairs"] = float((cosines_NN[rank].sum() - 1) / (num_ranks - 1))
        signals["cosine_mean"] = float((cosines_NN.sum() - num_ranks) / (num_ranks * (num_ranks - 1)))
        signals["cosine_se"] = 0.01
    return signals


def _manifest(num_ranks: int, notes: tuple[str, ...]) -> Manifest:
    return Manifest(
        trueline_version="0.1.0",
        started_at="2026-11-21T08:15:02+00:00",
        world_size=num_ranks,
        data_parallel_ranks=list(range(num_ranks)),
        adapter="ddp",
        command=["torchrun", "train.py"],
        notes=list(notes),
    )


def _env(rank: int, num_ranks: int, override: Mapping[str, Any]) -> RankEnv:
    fields: dict[str, Any] = {
        "rank": rank,
        "world_size": num_ranks,
        "hostname": "node-0",
        "pid": 4000 + rank,
        "params": ["weight"],
        "param_shapes": [[8, 16]],
        "param_dtypes": ["torch.float32"],
        "requires_grad": [True],
        "groups": [GroupSpec(name="all", params=["weight"], numel=128)],
        "sketch_length": SKETCH_LENGTH,
        "versions": {"torch": "2.13.0", "python": "3.11"},
        "environ": {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
    }
    return RankEnv(**{**fields, **override})


def write_long_run(path: Path, *, num_ranks: int, num_steps: int, spike: tuple[int, int]) -> Path:
    """A Run too long to be written row by row: scalar columns in one part a rank, loss 99 at ``spike`` (step, rank)."""
    write_run(path, num_ranks=num_ranks, num_steps=0)
    rng = np.random.default_rng(0)
    for rank in range(num_ranks):
        loss_T = 3 + rng.normal(size=num_steps) / 20
        loss_T[spike[0]] = 99.0 if rank == spike[1] else loss_T[spike[0]]
        columns = {
            "step": pa.array(np.arange(num_steps)),
            "rank": pa.array(np.full(num_steps, rank), pa.int32()),
            "loss": pa.array(loss_T),
            "grad_norm": pa.array(1 + rng.normal(size=num_steps) / 20),
            "cosine_others": pa.array(rng.normal(size=num_steps) / 20),
            "cosine_mean": pa.array(np.zeros(num_steps)),
        }
        _put_part(path, rank, pa.table(columns))
    return path
