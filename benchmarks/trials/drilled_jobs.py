"""Small trainings as users of frameworks write them, which know nothing of a drill: ``drilled_jobs.py NAME [STEPS]``,
on each of the ranks that RANK and WORLD_SIZE name, which meet at the file STORE.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 400
"""By which schedules go."""
WORDS, LENGTH, ROWS, BATCH = 32, 16, 4096, 8


def texts() -> list[dict[str, Tensor]]:
    """Rows of a chain of words in which each word has four that follow it."""
    draws = torch.Generator().manual_seed(0)
    follow = torch.randint(WORDS, (WORDS, 4), generator=draws)
    ids = torch.randint(WORDS, (ROWS, 1), generator=draws)
    for _ in range(LENGTH - 1):
        chosen = torch.randint(4, (ROWS,), generator=draws)
        ids = torch.cat([ids, follow[ids[:, -1], chosen][:, None]], dim=1)
    return [{"input_ids": row, "labels": row.clone()} for row in ids]


def points() -> TensorDataset:
    """Points of eight classes."""
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, 16, generator=draws)
    return TensorDataset(inputs, (inputs @ torch.randn(16, 8, generator=draws)).argmax(1))


def layers() -> nn.Sequential:
    """A classifier of points."""
    first = (nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1))
    return nn.Sequential(*first, nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))


def language_model() -> Any:
    """A GPT-2 of two layers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": LENGTH, "vocab_size": WORDS}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def ddp() -> None:
    """DistributedDataParallel by hand."""
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(layers())
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    data = points()
    sampler: DistributedSampler[Any] = DistributedSampler(data, seed=1)
    for epoch in range(STEPS):
        sampler.set_epoch(epoch)
        for inputs, classes in DataLoader(data, batch_size=BATCH, sampler=sampler):
            cross_entropy(net(inputs), classes).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()


def trainer() -> None:
    """The Trainer of transformers."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        learning_rate=3e-3,
        max_steps=STEPS,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(model=language_model(), args=arguments, train_dataset=texts()).train()  # type: ignore[arg-type]


def accelerate() -> None:
    """A loop of one's own with what Accelerate prepares."""
    from accelerate import Accelerator
    from transformers import get_linear_schedule_with_warmup

    accelerator = Accelerator(cpu=True)
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = get_linear_schedule_with_warmup(optimizer, 10, 2 * STEPS)
    loader: Any = DataLoader(texts(), batch_size=BATCH, shuffle=True)  # type: ignore[arg-type]
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for _ in range(STEPS):
        for batch in loader:
            accelerator.backward(model(**batch).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def lightning() -> None:
    """Lightning's Trainer."""
    from lightning import LightningModule, Trainer
    from lightning.fabric.plugins.environments import TorchElasticEnvironment

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers()

        def training_step(self, batch: Any, index: int) -> Tensor:
            inputs, classes = batch
            return cross_entropy(self.layers(inputs), classes)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=STEPS)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    torch.manual_seed(0)
    fit = Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        plugins=[TorchElasticEnvironment()],
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    fit.fit(Classifier(), DataLoader(points(), batch_size=BATCH, shuffle=True))


if __name__ == "__main__":
    os.environ |= {"LOCAL_RANK": os.environ["RANK"], "LOCAL_WORLD_SIZE": os.environ["WORLD_SIZE"]}
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
        "TORCHELASTIC_RUN_ID": "drill",
        "GROUP_RANK": "0",
    }
    place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", **place)
    {"ddp": ddp, "trainer": trainer, "accelerate": accelerate, "lightning": lightning}[sys.argv[1]]()
