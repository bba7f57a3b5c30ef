"""The script of each rank: ``torchrun ... -m benchmarks.frameworks.train NAME MODE OUT [JOB]``, JOB as JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys

import torch.distributed as dist
from benchmarks.frameworks.job import Job, own_rank


def job_of(mode: str, out: str, **given: object) -> Job:
    """The job of this rank."""
    return Job(mode, own_rank(), out, micros=2 if "2 micro-batches" in mode else 1, **given)  # type: ignore[arg-type]


def main(name: str, mode: str, out: str, given: str = "{}") -> None:
    """Train one mode of one framework, on this rank, or where the framework starts ranks by itself, on all."""
    module = importlib.import_module(f"benchmarks.frameworks.jobs.{name}")
    if hasattr(module, "start") and not dist.is_initialized():
        module.start([name, mode, out, given])
        return
    if not dist.is_initialized():
        if "SLURM_PROCID" in os.environ:  # as scripts for SLURM do
            os.environ |= {"RANK": os.environ["SLURM_PROCID"], "WORLD_SIZE": os.environ["SLURM_NTASKS"]}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
        dist.init_process_group("gloo")
    module.train(job_of(mode, out, **json.loads(given)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*[word for word in sys.argv[1:] if not word.startswith("--local_rank")])
