"""The Trainer of transformers."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.frameworks.job import Job
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

PACKAGE = "transformers"

MODES = ("DDP", "DDP, 2 micro-batches")


class WithLoss(nn.Module):
    """A model that returns its loss, as those of transformers do."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job, self.model = job, job.model()

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.model(input_ids)
        return {"loss": self.job.loss(logits, {"labels": labels}), "logits": logits}


class Keeping(Trainer):
    """The Trainer, with the loader of a data fault, and what the slow truth needs."""

    def __init__(self, job: Job, **options: Any) -> None:
        super().__init__(**options)
        self.job, self.held = job, list[dict[str, Tensor]]()

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self.job.loader() if self.job.fault else super().get_train_dataloader()

    def training_step(self, model: nn.Module, inputs: Any, *rest: Any) -> Tensor:
        step, weights = self.state.global_step, self.model.model  # type: ignore[union-attr]
        if not self.held:
            self.job.keep(step, weights.state_dict)
        self.held.append(dict(inputs))
        if len(self.held) == self.job.micros:
            self.job.keep_batches(step, self.held)
            self.held = []
        return super().training_step(model, inputs, *rest)


def train(job: Job) -> None:
    """Train with the usual arguments."""
    model = WithLoss(job)
    arguments = TrainingArguments(
        output_dir=f"{job.out}-trainer",
        use_cpu=True,
        per_device_train_batch_size=job.batch_size,
        gradient_accumulation_steps=job.micros,
        learning_rate=job.lr,
        lr_scheduler_type="constant",
        max_steps=job.steps,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    Keeping(job, model=model, args=arguments, train_dataset=job.dataset()).train()
    job.end({name: torch.Tensor(weight) for name, weight in model.model.state_dict().items()})
