"""Stored values are on the disk before the rows that refer to them are."""

import errno
import os

import numpy as np
from tests.unit.recorded_steps import make_step, tensor_record

from trueline.store.reader import Run
from trueline.store.writer import RunWriter


def record(path, steps, *, remove=False):
    writer = RunWriter(path, rank=0, seal_steps=2)
    for step in range(steps):
        writer.write(tensor_record(step, "t1", np.full(9, step)))
        writer.write(make_step(step))
        writer._records.drain()
        if remove:
            os.remove(path / f"tensors/rank-00000/step-{step:08d}.safetensors")
    writer.close()
    return writer


def synced(monkeypatch, *, fails=""):
    """Paths in the order in which they are fsynced; that of one whose path contains ``fails`` raises."""
    paths, fsync = [], os.fsync

    def watched(fd):
        path = os.readlink(f"/proc/self/fd/{fd}")
        if fails and fails in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        paths.append(path)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watched)
    return paths


def test_values_are_synced_before_the_rows_that_refer_to_them(tmp_path, monkeypatch):
    paths = synced(monkeypatch)
    record(tmp_path, steps=3)
    kinds = [
        "values" if "safetensors" in path else "folder" if path.endswith("tensors/rank-00000") else "rows"
        for path in paths
        if "/tensors/" in path or "/records/rank-00000/" in path
    ]
    assert kinds == ["values", "values", "folder", "rows", "values", "folder", "rows"]


def test_values_that_somebody_removed_hold_up_nothing(tmp_path):
    record(tmp_path, steps=3, remove=True)
    run = Run(tmp_path)
    assert run.record_steps.tolist() == [0, 1, 2]
    assert run.live_findings == []


def test_values_that_cannot_be_synced_are_said_to_be_lost_and_rows_stay(tmp_path, monkeypatch):
    synced(monkeypatch, fails="safetensors")
    record(tmp_path, steps=4)
    run = Run(tmp_path)
    assert run.record_steps.tolist() == [0, 1, 2, 3]
    (finding,) = run.live_findings
    assert finding.claim.startswith("Tensors could not be stored from step 0 on rank 0: Input/output error.")
