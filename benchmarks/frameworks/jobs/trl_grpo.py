"""The GRPOTrainer of TRL: it samples with the model that it trains, scores the texts and takes a step of GRPO."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.frameworks.job import Job, scaled
from benchmarks.frameworks.jobs.accelerate import weights_of
from benchmarks.frameworks.jobs.deepspeed_hf import tiny
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

PACKAGE = "trl"
IMPORTS = ("trl.trainer.grpo_trainer", "transformers.models.llama.modeling_llama", "accelerate", "datasets")

MODES = ("GRPOTrainer, DDP",)

PARTS = ("zero-edit", "bitwise", "healthy", "loss x 1.5", "frozen", "record, compare")

WORDS = [f"w{token}" for token in range(64)]
PROMPTS, LENGTH, GROUP = 768, 8, 4


class Keeping(GRPOTrainer):
    """The trainer, with a planted fault."""

    def __init__(self, job: Job, **options: Any) -> None:
        super().__init__(**options)
        self.job = job

    def compute_loss(self, *args: Any, **kwargs: Any) -> Tensor:
        return scaled(super().compute_loss(*args, **kwargs), self.job)


def train(job: Job) -> None:
    """Learn to write words from the first quarter of the vocabulary, with the usual arguments."""
    rows = torch.randint(2, len(WORDS), (PROMPTS, LENGTH), generator=torch.Generator().manual_seed(1)).tolist()
    data = Dataset.from_dict({"prompt": [" ".join(WORDS[token] for token in row) for row in rows]})
    tokenizer = Tokenizer(models.WordLevel({word: token for token, word in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "w0", "unk_token": "w0", "eos_token": "w1"}
    torch.manual_seed(0)
    model = LlamaForCausalLM(tiny())
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, 1
    settings = GRPOConfig(
        output_dir=f"{job.out}-trainer",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=job.batch_size,
        num_generations=GROUP,
        max_completion_length=LENGTH,
        learning_rate=job.lr,
        lr_scheduler_type="constant",
        max_steps=job.steps,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Keeping(
        job,
        model=model,
        args=settings,
        reward_funcs=_reward,
        train_dataset=data,
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **names),
    )
    trainer.train()
    job.end({name: weight.detach() for name, weight in weights_of(trainer.model_wrapped).items()})


def _reward(completions: list[str], **_: Any) -> list[float]:
    """The share of words from the first quarter."""
    few = set(WORDS[2 : len(WORDS) // 4])
    return [sum(word in few for word in text.split()) / max(len(text.split()), 1) for text in completions]
