"""Healthy Runs without any training: rows of N workers as a recorder would leave them, for tests to plant faults in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.simulated_epochs import Epoch
from tests.synthetic_runs import write_part

from trueline.schema.files.run_manifest import Attempt, GroupSpec, Manifest, RankEnv
from trueline.schema.files.start import Start
from trueline.store.reader import Run
from trueline.store.writer import RunWriter

PARAMS = ("embed", "blocks.0.weight", "blocks.0.bias", "head")
GROUPS = (("embed", ("embed",)), ("blocks.0", ("blocks.0.weight", "blocks.0.bias")), ("head", ("head",)))
K = 31
FLOOR = 1e-5
Rows = dict[tuple[int, int], dict[str, Any]]
"""(step, rank) to columns."""


def rank_env(rank: int, num_ranks: int, **changes: Any) -> RankEnv:
    """A worker of a small DDP job."""
    facts: dict[str, Any] = {
        "rank": rank,
        "world_size": num_ranks,
        "hostname": f"node{rank // 2}",
        "pid": 100 + rank,
        "device": f"cuda:{rank}",
        "params": list(PARAMS),
        "param_shapes": [[2, 2]] * len(PARAMS),
        "param_dtypes": ["torch.float32"] * len(PARAMS),
        "requires_grad": [True] * len(PARAMS),
        "buffers": ["norm.running_mean", "norm.running_var"],
        "groups": [GroupSpec(name=name, params=list(params), numel=4) for name, params in GROUPS],
        "sketch_length": K,
        "versions": {"python": "3.11.9", "torch": "2.13.0"},
        "flags": {"cudnn_benchmark": False},
        "environ": {"RANK": str(rank), "CUDA_VISIBLE_DEVICES": str(rank), "NCCL_ALGO": "Ring"},
        "optimizer": {"class": "AdamW", "groups": [{"lr": 1e-3, "weight_decay": 0.01, "num_params": 4}]},
    }
    return RankEnv(**{**facts, **changes})


def healthy_rows(num_ranks: int, num_steps: int, *, first_step: int = 0) -> Rows:
    """Gradients, reductions, digests and settings of healthy workers; no samples (see ``sample_rows``)."""
    rng = np.random.default_rng(7)
    rows: Rows = {}
    for step in range(first_step, first_step + num_steps):
        local = rng.normal(size=(num_ranks, len(GROUPS), K))
        used_norms = rng.uniform(1, 2, len(PARAMS))
        digests = rng.integers(1 << 60, size=8)
        for rank in range(num_ranks):
            rows[step, rank] = {
                "time_ns": 10**18 + step,
                "loss": float(rng.uniform(1, 2)),
                "tokens": 8.0,
                "num_micro": 1,
                "passes": step - first_step + 1,
                "lr": [1e-3],
                "optimizer_digest": 77,
                "grad_norm": float(np.linalg.norm(local[rank])),
                "grad_nonfinite": 0.0,
                "param_grad_norms": rng.uniform(1, 2, len(PARAMS)),
                "group_grad_norms": np.linalg.norm(local[rank], axis=1),
                "group_seen": [1.0] * len(GROUPS),
                "used_param_norms": used_norms,
                "sketch": local[rank].astype(np.float32).ravel(),
                "group_reduce_residual": [1e-7] * len(GROUPS),
                "group_reduce_floor": [FLOOR] * len(GROUPS),
                "group_reduce_factor": [1.0] * len(GROUPS),
                "group_reduce_shape_residual": [1e-7] * len(GROUPS),
                "group_used_residual": [1e-8] * len(GROUPS),
                "group_used_floor": [FLOOR] * len(GROUPS),
                "group_used_factor": [1.0] * len(GROUPS),
                "group_used_shape_residual": [1e-8] * len(GROUPS),
                "group_used_local": [0.7] * len(GROUPS),
                "param_digests": digests[: len(PARAMS)].astype(np.uint64),
                "buffer_digests": digests[-2:].astype(np.uint64),
                "rng_python": 1,
                "rng_numpy": 2,
                "rng_torch": 1000 * step + rank + 1,
            }
    return rows


def sample_rows(epochs: Sequence[Epoch], batch: int, *, num_steps: int | None = None, epoch_seen: bool = True) -> Rows:
    """Rows with nothing but the consumed samples, ``batch`` a worker and step."""
    rows: Rows = {}
    first = 0
    for number, workers in enumerate(epochs):
        for rank, ids in enumerate(workers):
            for index, start in enumerate(range(0, len(ids), batch)):
                rows[first + index, rank] = {"sample_digests": (ids[start : start + batch] + 1).astype(np.uint64)}
                if epoch_seen:
                    rows[first + index, rank]["epoch"] = number
        first += max(-(-len(ids) // batch) for ids in workers)
    return {key: row for key, row in rows.items() if num_steps is None or key[0] < num_steps}


def write_run(
    path: Path, rows: Rows, *, envs: Mapping[int, RankEnv] | None = None, world_size: int | None = None, **manifest: Any
) -> Run:
    """The Run that ``rows`` make, opened."""
    ranks = sorted({rank for _, rank in rows} | set(envs or {0: None}))
    num_ranks = world_size or max(ranks) + 1
    facts = {"world_size": num_ranks, "data_parallel_ranks": list(range(num_ranks)), "adapter": "ddp"}
    for rank in sorted({0, *ranks}):
        writer = RunWriter(path, rank=rank)
        env = (envs or {}).get(rank) or rank_env(rank, num_ranks)
        writer.describe(Manifest(**{**facts, **manifest}) if rank == 0 else None, env)
        writer.close()
        own = sorted(step for step, owner in rows if owner == rank)
        write_part(path, rank, [{"step": step, **rows[step, rank]} for step in own])
    return Run(path)


def write_starts(path: Path, starts: Sequence[tuple[int, Rows]], **manifest: Any) -> Run:
    """The Run of a job that was started several times: (first step, what it wrote) of each start."""
    ranks = sorted({rank for _, rows in starts for _, rank in rows})
    facts = {"world_size": len(ranks), "data_parallel_ranks": ranks, "adapter": "ddp"}
    attempts = [Attempt(step=first) for first, _ in starts]
    whole = Manifest(**{**facts, "attempts": attempts, **manifest})
    for number, (first, rows) in enumerate(starts):
        for rank in ranks:
            start = Start(attempt=number, step=first, manifest=whole if rank == 0 and number else None)
            writer = RunWriter(path, rank=rank, seal_steps=10_000, start=start, creates=rank == 0 and not number)
            writer.describe(whole if rank == 0 else None, rank_env(rank, len(ranks)))
            for (step, _), row in sorted((key, row) for key, row in rows.items() if key[1] == rank):
                writer.write({"step": step, **row})
            writer.close()
    return Run(path)
