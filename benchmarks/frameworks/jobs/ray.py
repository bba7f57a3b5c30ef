"""Ray Train: a ``TorchTrainer``, whose workers are started by Ray."""

from __future__ import annotations

import sys
from typing import Any

import torch
from benchmarks.frameworks.job import WORLD, Job
from ray import init
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

PACKAGE = "ray"

MODES = ("TorchTrainer, DDP",)


def command(mode: str, module: str) -> list[str]:
    """The driver's command; it starts the ranks."""
    del mode
    return [sys.executable, "-m", module]


def start(arguments: list[str]) -> None:
    """Let Ray start all ranks of the training script with these arguments."""
    init(num_cpus=WORLD, include_dashboard=False, log_to_driver=False)
    scaling, out = ScalingConfig(num_workers=WORLD), RunConfig(storage_path=arguments[2])
    TorchTrainer(
        _on_each_rank, train_loop_config={"arguments": arguments}, scaling_config=scaling, run_config=out
    ).fit()


def _on_each_rank(config: dict[str, Any]) -> None:
    from benchmarks.frameworks.train import main

    main(*config["arguments"])


def train(job: Job) -> None:
    """Train as the documentation of Ray Train does."""
    model = prepare_model(job.model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    for step, micro_batches in enumerate(job.batches()):
        job.keep(step, model.module.state_dict)
        for batch in micro_batches:
            (job.loss(model(batch["input_ids"]), batch) / len(micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
    job.end(model.module.state_dict())
