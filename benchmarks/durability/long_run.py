"""A Run as the default plan leaves it after very many steps: four ranks, every column that data parallelism fills.

Letters: T steps of a part, P parameters, G groups, S samples of a rank's batch, k sketch length.
"""

from __future__ import annotations

import resource
import time
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import trueline
from trueline.judge.check_run import check
from trueline.schema.files.run_manifest import GroupSpec, Manifest, RankEnv
from trueline.store.file_names import WORKERS_DIR, PartName
from trueline.store.log import merge
from trueline.store.log.parts import encode_part
from trueline.store.reader import Run
from trueline.store.rows import worker_schema
from trueline.store.writer import RunWriter

RANKS = 4
STEPS_A_PART = 100
PARAMS, GROUPS, SAMPLES, SKETCH = 16, 4, 8, 4099
DIGESTS_EVERY, SKETCH_EVERY = 25, 50
"""As ``Plan.params_every`` and ``Plan.matrix_every`` are."""


def write(path: Path, *, steps: int, merges: bool, ranks: int = RANKS, plan: Mapping[str, Any] | None = None) -> None:
    """Write the Run at ``path``; its parts are sealed, and with ``merges`` merged, as those of a job are. ``plan`` is
    what was asked for.
    """
    params = [f"layers.{number}.weight" for number in range(PARAMS)]
    each = PARAMS // GROUPS
    groups = [
        GroupSpec(name=f"layers.{at}", params=params[at : at + each], numel=1000) for at in range(0, PARAMS, each)
    ]
    for rank in range(ranks):
        writer = RunWriter(path, rank=rank)
        group = list(range(ranks))
        manifest = Manifest(
            world_size=ranks, data_parallel_ranks=group, adapter="ddp", started_at="then", plan=dict(plan or {})
        )
        env = RankEnv(
            rank=rank, world_size=ranks, params=params, param_shapes=[[10, 25]] * PARAMS, groups=groups,
            requires_grad=[True] * PARAMS, param_dtypes=["torch.float32"] * PARAMS, sketch_length=SKETCH,
        )  # fmt: skip
        writer.describe(manifest if rank == 0 else None, env)
        merger = merge.PartMerger(str(path / WORKERS_DIR))
        for sequence in range(steps // STEPS_A_PART):
            part = _seal(path / WORKERS_DIR, rank, sequence)
            if merges:
                merger.add(part)
        writer.close()


def read(path: Path, *, steps: int, merges: bool) -> dict[str, float]:
    """CPU seconds to open the Run, and with ``merges`` to check and report it; MiB of the report and of memory."""
    begin = time.process_time()
    run = Run(path)
    spent = {"open": time.process_time() - begin}
    assert len(run.steps) == steps, run.problems[:3]
    if merges:
        begin = time.process_time()
        check(run)
        spent["check"] = time.process_time() - begin
        page = path.with_suffix(".html")
        begin = time.process_time()
        trueline.report([str(path)], page)
        spent |= {"report": time.process_time() - begin, "page": page.stat().st_size / 2**20}
    return spent | {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _seal(folder: Path, rank: int, sequence: int) -> PartName:
    found = columns(rank, np.arange(sequence * STEPS_A_PART, (sequence + 1) * STEPS_A_PART))
    arrays = [pa.array(values, worker_schema().field(name).type) for name, values in found.items()]
    data = encode_part(pa.table(arrays, names=list(found)))
    part = PartName(rank, sequence, zlib.crc32(data))
    (folder / str(part)).write_bytes(data)
    return part


def columns(rank: int, step_T: np.ndarray) -> dict[str, Any]:
    """The columns of a healthy rank at these steps, each [T]."""
    shared, own = np.random.default_rng([step_T[0]]), np.random.default_rng([step_T[0], rank + 1])
    count = len(step_T)
    loss_T = 2 + 5 / (step_T + 10) + 0.1 * own.standard_normal(count)
    norm_TP = (1 + 0.1 * shared.standard_normal((count, PARAMS))) * (1 + 0.05 * own.standard_normal((count, PARAMS)))
    reduced_TP = 0.7 * (1 + 0.1 * shared.standard_normal((count, PARAMS)))
    used_TP = reduced_TP * 0.9
    cosine_T = 0.4 + 0.05 * shared.standard_normal(count)
    gram_T = np.sqrt((1 + cosine_T) / 2)
    residual_TG = 2e-8 * (1 + own.random((count, GROUPS)))
    ones_TG, zeros_TG = np.ones((count, GROUPS)), np.zeros((count, GROUPS))
    digest_TP = shared.integers(1, 2**63, (count, PARAMS), dtype=np.uint64)
    random_T = own.integers(1, 2**63, count, dtype=np.uint64)
    digested_T, sketched_T = step_T % DIGESTS_EVERY == 0, step_T % SKETCH_EVERY == 0
    sketch = [
        sum(draw.standard_normal(GROUPS * SKETCH, dtype=np.float32) for draw in (shared, own))
        for _ in range(sum(sketched_T))
    ]
    return {
        "step": step_T,
        "rank": np.full(count, rank),
        "time_ns": step_T * 500_000_000,
        "step_s": 0.5 + 0.01 * own.standard_normal(count),
        "own_s": 0.002 + 0.0001 * own.standard_normal(count),
        "num_micro": np.ones(count, int),
        "passes": step_T + 1,
        "loss": loss_T,
        "tokens": np.full(count, float(SAMPLES)),
        "lr": [[1e-3]] * count,
        "optimizer_digest": np.full(count, 7, dtype=np.uint64),
        "sample_digests": list(own.integers(1, 2**63, (count, SAMPLES), dtype=np.uint64)),
        **{name: _at(digested_T, random_T[digested_T]) for name in ("rng_python", "rng_numpy", "rng_torch")},
        "grad_norm": np.linalg.norm(norm_TP, axis=1),
        "grad_nonfinite": np.zeros(count),
        "param_grad_norms": list(norm_TP),
        "group_grad_norms": list(_of_groups(norm_TP)),
        "group_seen": list(ones_TG),
        "used_param_norms": list(used_TP),
        "reduced_norm": np.linalg.norm(reduced_TP, axis=1),
        "group_reduced_norms": list(_of_groups(reduced_TP)),
        "sketch": _at(sketched_T, sketch),
        "cosine_others": cosine_T,
        "cosine_reduced": gram_T,
        "cosine_pairs": cosine_T,
        "cosine_mean": cosine_T,
        "cosine_se": np.full(count, 0.01),
        "group_cosine_others": list(ones_TG * cosine_T[:, None]),
        "group_reduce_residual": list(residual_TG),
        "group_reduce_floor": list(2e-5 * ones_TG),
        "group_reduce_factor": list(ones_TG + residual_TG),
        "group_reduce_shape_residual": list(residual_TG),
        "group_used_residual": list(zeros_TG),
        "group_used_floor": list(2e-5 * ones_TG),
        "group_used_factor": list(0.9 * ones_TG),
        "group_used_shape_residual": list(zeros_TG),
        "group_used_local": list(0.5 + 0.1 * own.random((count, GROUPS))),
        "param_digests": _at(digested_T, digest_TP[digested_T]),
    }


def _of_groups(norm_TP: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(norm_TP).reshape(len(norm_TP), GROUPS, -1).sum(axis=2))


def _at(when_T: np.ndarray, values: Iterable[Any]) -> list[Any]:
    """[T] the values, one for each step that is set in ``when_T``, None at the others."""
    left = iter(values)
    return [next(left) if measured else None for measured in when_T]
