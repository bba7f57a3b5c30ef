"""The SFTTrainer of TRL, which makes tokens of text."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from benchmarks.frameworks.job import SAMPLES, Job, problem, scaled
from benchmarks.frameworks.jobs.accelerate import sharding_on_cpu, weights_of
from benchmarks.frameworks.jobs.deepspeed_hf import tiny, truth
from benchmarks.frameworks.jobs.trainer import cut
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

PACKAGE = "trl"
IMPORTS = ("trl", "transformers.models.llama.modeling_llama", "accelerate", "datasets", "torch.distributed.fsdp")

MODES = ("SFTTrainer, DDP", "SFTTrainer, FSDP2")

__all__ = ["truth"]


class Keeping(SFTTrainer):
    """The trainer, with planted faults, and what the slow truth needs."""

    def __init__(self, job: Job, **options: Any) -> None:
        super().__init__(**options)
        self.job = job

    def get_train_dataloader(self) -> DataLoader[Any]:
        if self.job.fault not in ("no sampler", "another data seed"):
            return super().get_train_dataloader()
        sampler = self.job.loader().sampler
        shuffle = not isinstance(sampler, DistributedSampler)
        generator = torch.Generator().manual_seed(0)
        return DataLoader(
            self.train_dataset,
            batch_size=self.job.batch_size,
            sampler=None if shuffle else sampler,
            shuffle=shuffle,
            generator=generator,
            collate_fn=self.data_collator,
        )

    def training_step(self, model: Any, inputs: Any, *rest: Any) -> Tensor:
        if self.job.is_bad and self.job.fault == "labels shuffled":
            inputs["labels"] = inputs["labels"].roll(1, dims=0)
        self.job.keep(self.state.global_step, lambda: weights_of(model))
        self.job.keep_batches(self.state.global_step, [{name: inputs[name] for name in ("input_ids", "labels")}])
        return super().training_step(model, inputs, *rest)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        return (scaled(loss[0], self.job), *loss[1:]) if isinstance(loss, tuple) else scaled(loss, self.job)


def train(job: Job) -> None:
    """Train on rows of words with the usual arguments."""
    words = [f"w{token}" for token in range(problem().vocab_size)]
    rows = problem().dataset(SAMPLES, seed=1).columns["input_ids"].tolist()
    data = Dataset.from_dict({"text": [" ".join(words[token] for token in row) for row in rows]})
    tokenizer = Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    model = LlamaForCausalLM(tiny())
    with sharding_on_cpu() if "FSDP" in job.mode else contextlib.nullcontext():
        settings = SFTConfig(
            output_dir=f"{job.out}-trainer",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=job.batch_size,
            learning_rate=job.lr,
            lr_scheduler_type="constant",
            max_steps=job.steps,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            **cut(job, "LlamaDecoderLayer"),
        )
        words_of = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", eos_token="w0")
        trainer = Keeping(job, model=model, args=settings, train_dataset=data, processing_class=words_of)
        trainer.train()
    job.end({name: weight.detach() for name, weight in weights_of(trainer.model_wrapped).items()})
