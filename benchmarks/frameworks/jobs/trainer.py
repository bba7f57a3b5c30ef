"""The Trainer of transformers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from benchmarks.frameworks.job import Job
from benchmarks.frameworks.jobs.accelerate import sharding_on_cpu, weights_of
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

PACKAGE = "transformers"

MODES = ("DDP", "DDP, 2 micro-batches", "FSDP1", "FSDP2")


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
        step = self.state.global_step
        if not self.held:
            self.job.keep(step, lambda: _inner(model))
        self.held.append(dict(inputs))
        if len(self.held) == self.job.micros:
            self.job.keep_batches(step, self.held)
            self.held = []
        return super().training_step(model, inputs, *rest)


def train(job: Job) -> None:
    """Train with the usual arguments."""
    model = WithLoss(job)
    with sharding_on_cpu() if "FSDP" in job.mode else contextlib.nullcontext():
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
            **cut(job, type(model.model.blocks[0]).__name__),  # type: ignore[index, union-attr]
        )
        trainer = Keeping(job, model=model, args=arguments, train_dataset=job.dataset())
        trainer.train()
    job.end(_inner(trainer.model_wrapped))


def cut(job: Job, layer: str) -> dict[str, Any]:
    """Arguments for FSDP of the mode's version, if any, which wraps each ``layer``."""
    if "FSDP" not in job.mode:
        return {}
    version = int(job.mode.split("FSDP")[1][0])
    settings = {"version": version, "transformer_layer_cls_to_wrap": [layer], "sync_module_states": False}
    return {"fsdp": True, "fsdp_config": settings}


def _inner(model: Any) -> Mapping[str, Tensor]:
    return {name.removeprefix("model."): weight.detach() for name, weight in weights_of(model).items()}
