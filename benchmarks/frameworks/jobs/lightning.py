"""Lightning's Trainer with its DDP, FSDP (FSDP1) and model-parallel (FSDP2) strategies."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning
import torch
from benchmarks.frameworks.job import WORLD, Job
from benchmarks.frameworks.jobs.fsdp import sharded, whole
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor

PACKAGE = "lightning"

MODES = ("DDP", "DDP, 2 micro-batches", "DDP, manual optimization", "FSDP1", "FSDP1, 2 micro-batches", "FSDP2")


class OnCpu(FSDPStrategy):
    """Lightning has FSDP1 for GPUs only: it refuses ``FSDPStrategy`` itself with another accelerator."""


class Module(lightning.LightningModule):
    """A module as Lightning's users write it."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job, self.model = job, job.model()
        self.held: list[dict[str, Tensor]] = []
        self.automatic_optimization = "manual" not in job.mode

    def configure_model(self) -> None:
        if "FSDP" in self.job.mode:
            self.model = sharded(self.model, self.job.mode.split(",")[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=self.job.lr)

    def weights(self) -> dict[str, Tensor]:
        """All weights, gathered on every rank where they are cut."""
        return {name: weight.detach() for name, weight in whole(self.model).items()}

    def on_train_end(self) -> None:
        self.job.end(self.weights())

    def training_step(self, batch: Any, index: int) -> Tensor | None:
        if not self.held:
            self.job.keep(self.global_step, self.weights)
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


def strategy(job: Job) -> str | Strategy:
    """What the mode asks for."""
    if "FSDP1" in job.mode:
        return OnCpu()
    return ModelParallelStrategy(data_parallel_size=WORLD, tensor_parallel_size=1) if "FSDP2" in job.mode else "ddp"


def train(job: Job) -> None:
    """Fit for as many steps as the job has."""
    logging.getLogger("lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    module = Module(job)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=WORLD,
        strategy=strategy(job),
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
