"""DeepSpeed below Hugging Face's Trainer and Accelerate."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from benchmarks.frameworks.job import Job, scaled
from benchmarks.frameworks.jobs import deepspeed as plain

PACKAGE = "accelerate"
IMPORTS = ("deepspeed", "accelerate", "transformers")

MODES = ("Accelerate, ZeRO 2, bf16", "Trainer, ZeRO 2, bf16", "Trainer, ZeRO 3, bf16, 2 micro-batches")


def train(job: Job) -> None:
    """Train as the documentation of each does, with a dictionary of DeepSpeed's settings."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    (with_trainer if "Trainer" in job.mode else with_accelerate)(job)


def config_of(job: Job) -> dict[str, Any]:
    """DeepSpeed's settings."""
    stage = int(job.mode.split("ZeRO ")[1][0])
    return {
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "train_micro_batch_size_per_gpu": job.batch_size,
        "gradient_accumulation_steps": job.micros,
        "gradient_clipping": 1.0,
    }


def with_accelerate(job: Job) -> None:
    """A loop of one's own."""
    from accelerate import Accelerator
    from accelerate.utils import DeepSpeedPlugin

    accelerator = Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config_of(job)))
    model = job.model()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=job.lr))
    for step, micro_batches in enumerate(job.batches()):
        job.keep(step, lambda: plain.whole(model.module))
        for batch in micro_batches:
            with accelerator.accumulate(model):
                accelerator.backward(job.loss(model(batch["input_ids"]), batch))
                optimizer.step()
                optimizer.zero_grad()
    job.end(plain.whole(model.module))


def with_trainer(job: Job) -> None:
    """A Trainer whose data come from the job's loader."""
    from transformers import LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    batches = itertools.chain.from_iterable(job.batches())

    class Own(Trainer):
        def get_train_dataloader(self) -> Any:
            return list(batches) if job.keeps else _Loader(job)

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            return (scaled(loss[0], job), loss[1]) if isinstance(loss, tuple) else scaled(loss, job)

    class Keeping(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            job.keep(state.global_step, lambda: plain.whole(model))

    settings = TrainingArguments(
        str(Path(job.out, "trainer")),
        use_cpu=True,
        bf16=True,
        deepspeed=config_of(job),
        max_steps=job.steps,
        per_device_train_batch_size=job.batch_size,
        gradient_accumulation_steps=job.micros,
        learning_rate=job.lr,
        lr_scheduler_type="constant",
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(tiny())
    trainer = Own(model, settings, train_dataset=job.dataset(), callbacks=[Keeping()])
    trainer.train()
    job.end(plain.whole(model))


def truth(weights: dict[str, torch.Tensor], batches: list[dict[str, torch.Tensor]]) -> Any:
    """Loss and gradient of the Trainer's model, or of the usual one."""
    from benchmarks.frameworks import truth as slow

    if "model.embed_tokens.weight" not in weights:
        return slow.plain(weights, batches)
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(tiny()).double()
    model.load_state_dict({name: weight.double() for name, weight in weights.items()}, strict=False)
    return slow.measured(model, [model(**batch).loss for batch in batches], batches)


class _Loader:
    """The job's batches, of a length that the Trainer asks for."""

    def __init__(self, job: Job) -> None:
        self._loader = job.loader()
        self.sampler, self.dataset, self.batch_size = self._loader.sampler, self._loader.dataset, job.batch_size

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Any:
        return iter(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """As the Trainer calls it."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)


def tiny() -> Any:
    """The configuration of a Llama of 20k parameters."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
