"""One small model under a framework: `frameworks_job.py FRAMEWORK [--ranks N] [--accumulate N] [--per-rank N]`.

FRAMEWORK: hf (Trainer of transformers, a tiny Llama), accelerate (a loop with gradient accumulation), lightning (a
LightningModule). --fault: divided (the script divides a loss that the framework divides, too), unsharded (ranks read
the same samples), own-sampler (of Lightning: in order, where its own shuffles).
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("framework")
parser.add_argument("--ranks", type=int, default=1)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--per-rank", type=int, default=8)
parser.add_argument("--fault", default="")
asked = parser.parse_args()
sys.argv[1:] = []  # Lightning would start the script again with them
if asked.ranks > 1:
    # ranks are forks that import torch by themselves, as processes of torchrun do
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(asked.ranks)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(asked.ranks), "RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
    for number in range(1, asked.ranks):
        if os.fork() == 0:
            os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number)}
            break

import torch  # noqa: E402
from torch.utils.data import DataLoader, Dataset, DistributedSampler  # noqa: E402

VOCAB, LENGTH, ROWS = 64, 16, 256


class Rows(Dataset):
    """Sequences of random tokens."""

    def __init__(self) -> None:
        self.ids = torch.randint(VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def made() -> torch.nn.Module:
    """A tiny Llama of transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, max_position_embeddings=LENGTH, **sizes))


def hf() -> None:
    """Trainer."""
    from transformers import Trainer, TrainingArguments

    class Divided(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            return loss / self.args.gradient_accumulation_steps / self.args.world_size

    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=asked.per_rank,
        gradient_accumulation_steps=asked.accumulate,
        max_steps=8,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
    )
    kind = Divided if asked.fault == "divided" else Trainer
    kind(model=made(), args=arguments, train_dataset=Rows()).train()


def accelerate() -> None:
    """A loop of one's own."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=asked.accumulate)
    model = made()
    loader = DataLoader(Rows(), batch_size=asked.per_rank, shuffle=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if asked.fault == "unsharded":
        model, optimizer = accelerator.prepare(model, optimizer)
    else:
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss / asked.accumulate if asked.fault == "divided" else loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def lightning() -> None:
    """A LightningModule."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = made()

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.model(**batch).loss
            return loss / asked.accumulate if asked.fault == "divided" else loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    has_own = asked.fault == "own-sampler"
    trainer = lightning.Trainer(
        accelerator="cpu", devices=asked.ranks, strategy="ddp" if asked.ranks > 1 else "auto", max_steps=8,
        accumulate_grad_batches=asked.accumulate, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
        use_distributed_sampler=not has_own,
    )  # fmt: skip
    rows, rank = Rows(), int(os.environ.get("RANK", "0"))
    sampler = DistributedSampler(rows, num_replicas=asked.ranks, rank=rank, shuffle=False) if has_own else None
    trainer.fit(Module(), DataLoader(rows, batch_size=asked.per_rank, shuffle=False, sampler=sampler))


if __name__ == "__main__":
    {"hf": hf, "accelerate": accelerate, "lightning": lightning}[asked.framework]()
