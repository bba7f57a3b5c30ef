"""What one worker does in one setting: build, re-seed, train under watch, write a Run.

Letters: B samples of a batch, L tokens of its longest sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from transformers import set_seed

import trueline
from trueline.demo.epochs import epochs
from trueline.demo.model import ModelSpec, build_model
from trueline.demo.settings import Setting
from trueline.demo.tokens import IGNORED, PaddingCollator, Sample

LEARNING_RATE = 1e-3
PLAN = {"every": 1, "matrix_every": 10, "params_every": 10}
"""Everything is measured at every step, so that the curves of the demo have enough points."""


class PackedSamples(Dataset[Sample]):
    """Samples in three arrays, so that sending thousands of them to a worker is three copies."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.ids = np.concatenate([sample.input_ids for sample in samples]).astype(np.int32)
        self.labels = np.concatenate([sample.labels for sample in samples]).astype(np.int32)
        self.starts = np.cumsum([0, *(len(sample.input_ids) for sample in samples)])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> Sample:
        span = slice(self.starts[index], self.starts[index + 1])
        return Sample(input_ids=self.ids[span].astype(np.int64), labels=self.labels[span].astype(np.int64))


@dataclass(frozen=True, slots=True)
class Job:
    """All that the workers of one setting need. ``batch_size`` is samples a rank and step, ``run`` the Run to write.

    ``progress`` is a file into which rank 0 writes how many steps are done and its last loss.
    """

    setting: Setting
    samples: PackedSamples
    pad_id: int
    model: ModelSpec
    run: Path
    progress: Path
    steps: int
    batch_size: int
    seed: int
    bf16: bool


@dataclass(frozen=True, slots=True)
class Learned:
    """Losses of one worker, mean over its own tokens, float64 ``[steps]``."""

    losses: np.ndarray


def train(rank: int, world_size: int, job: Job) -> Learned:
    """Train ``job.steps`` steps with full-parameter AdamW under DDP; runs on every worker, in a gloo group of all."""
    torch.manual_seed(job.seed)  # the same weights in every setting, so that settings differ in what was planted only
    model = DistributedDataParallel(build_model(job.model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    seed = job.setting.seed(rank, base=job.seed)
    set_seed(seed)
    batches = endless_batches(job, rank, world_size, seed=seed)
    label_generator = torch.Generator().manual_seed(job.seed)
    losses = np.full(job.steps, np.nan)
    watch = trueline.watch(model, optimizer, out=job.run, plan=PLAN)
    try:
        for step, batch in enumerate(itertools.islice(batches, job.steps)):
            if job.setting.shuffles_labels(rank, world_size=world_size):
                batch["labels"] = shuffled_labels(batch["labels"], label_generator)
            with watch.step(batch):
                loss = _loss(model, batch, bf16=job.bf16) * job.setting.loss_factor(rank, world_size=world_size)
                watch.loss(loss, tokens=int((batch["labels"][:, 1:] != IGNORED).sum()))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses[step] = loss.item()
            if rank == 0:
                job.progress.write_text(f"{step + 1} {losses[step]}")
    finally:
        watch.close()
    return Learned(losses=losses)


def endless_batches(job: Job, rank: int, world_size: int, *, seed: int) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of ``rank``, epoch after epoch, each epoch in a new order that ``seed`` decides."""
    sampler = None
    if job.setting.distributed_sampler:
        sampler = DistributedSampler(job.samples, num_replicas=world_size, rank=rank, shuffle=True, seed=seed)
    loader = DataLoader(
        job.samples,
        batch_size=job.batch_size,
        sampler=sampler,
        shuffle=sampler is None,
        generator=torch.Generator().manual_seed(seed),
        collate_fn=PaddingCollator(job.pad_id),
    )
    return epochs(loader)


def shuffled_labels(labels_BL: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A copy of ``labels_BL`` (int64) whose counted labels are permuted over all samples and positions of the batch."""
    mixed_BL = labels_BL.clone()
    counted = labels_BL != IGNORED
    values = labels_BL[counted]
    mixed_BL[counted] = values[torch.randperm(len(values), generator=generator)]
    return mixed_BL


def _loss(model: torch.nn.Module, batch: dict[str, Any], *, bf16: bool) -> torch.Tensor:
    """Mean cross entropy over the counted tokens of this rank's batch, float32, a scalar."""
    with torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else nullcontext():
        return model(**batch).loss
