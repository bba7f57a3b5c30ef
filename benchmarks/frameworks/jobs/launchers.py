"""What starts the ranks: DistributedDataParallel below each launcher; ``srun`` with a real SLURM on one node."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from benchmarks.frameworks.job import WORLD, Job
from benchmarks.frameworks.jobs import ddp

PACKAGE = "torch"

PARTS = ("zero-edit",)

COMMANDS = {
    "torchrun": ["torchrun", "--nproc-per-node", f"{WORLD}"],
    "python -m torch.distributed.run": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", f"{WORLD}"],
    "accelerate launch": ["accelerate", "launch", "--multi_gpu", "--num_processes", f"{WORLD}"],
    "deepspeed": ["deepspeed", "--num_accelerators", f"{WORLD}"],
    "srun": ["srun", "--overcommit", "--ntasks", f"{WORLD}", sys.executable],
}
"""Begin a command; ``-m MODULE ARGUMENTS`` follows, which ``deepspeed`` calls ``--module``."""

WHERE = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

MODES = tuple(mode for mode, (program, *_) in COMMANDS.items() if shutil.which(program, path=WHERE))


def command(mode: str, module: str) -> list[str]:
    """The command of ``mode`` that starts ``module`` on all ranks."""
    program, *words = COMMANDS[mode]
    return [shutil.which(program, path=WHERE) or program, *words, "--module" if mode == "deepspeed" else "-m", module]


def train(job: Job) -> None:
    """Train as under ``torchrun``."""
    ddp.train(job)
