"""Lightning's Trainer with its DDP and FSDP strategies."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning
import torch
from benchmarks.frameworks.fsdp import whole
from benchmarks.frameworks.job import WORLD, Job
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from torch import Tensor

PACKAGE = "lightning"

MODES = ("DDP", "DDP, 2 micro-batches", "DDP, manual optimization")


class Module(lightning.LightningModule):
    """A module as Lightning's users write it."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job, self.model = job, job.model()
        self.held: list[dict[str, Tensor]] = []
        self.automatic_optimization = "manual" not in job.mode

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=self.job.lr)

    def training_step(self, batch: Any, index: int) -> Tensor | None:
        if not self.held:
            self.job.keep(self.global_step, lambda: whole(self.model))
        self.held.append(batch)
        if len(self.held) == self.job.micros:
            self.job.keep_batches(self.global_step, self.held)
            self.held = []
        loss = self.job.loss(self.model(batch["input_ids"]), batch)
        if self.automatic_optimization:
            return loss
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return None


def train(job: Job) -> None:
    """Fit for as many steps as the job has."""
    logging.getLogger("lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    module = Module(job)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=WORLD,
        strategy="ddp",
        plugins=[TorchElasticEnvironment()],
        max_steps=job.steps,
        accumulate_grad_batches=job.micros,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, job.loader())
    job.end(module.model.state_dict())
