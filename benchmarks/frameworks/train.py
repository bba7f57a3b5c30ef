"""The script of each rank: ``torchrun ... -m benchmarks.frameworks.train NAME MODE OUT [STEPS]``."""

from __future__ import annotations

import importlib
import sys

import torch.distributed as dist
from benchmarks.frameworks.job import STEPS, Job, own_rank


def job_of(mode: str, out: str, **given: object) -> Job:
    """The job of this rank."""
    return Job(mode, own_rank(), out, micros=2 if "2 micro-batches" in mode else 1, **given)  # type: ignore[arg-type]


def main(name: str, mode: str, out: str, steps: str = str(STEPS), *_: str) -> None:
    """Train one mode of one framework."""
    module = importlib.import_module(f"benchmarks.frameworks.{name}")
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    module.train(job_of(mode, out, steps=int(steps)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*[word for word in sys.argv[1:] if not word.startswith("--local_rank")])
