"""What a training script of this benchmark gets: model, data, loss, with or without a planted fault, and where it
leaves what it trained. The scripts themselves know nothing of Trueline.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gallery.problems import CausalLM, Rows
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

WORLD = 3
"""With two ranks it often cannot be decided which of the two is faulty."""

BAD = 1
"""The rank at which a fault is planted, but for ``no sampler``, which all ranks have."""

FAULTS = ("loss x 1.5", "labels shuffled", "no sampler", "another data seed", "frozen")
"""Of a frozen rank the learning rate is 0, so that it updates nothing."""

STEPS = 60
SAMPLES = 3072
LR = 0.003


@dataclass(frozen=True)
class Job:
    """One training, the same on every rank but for ``rank``. ``mode`` is one of the framework's own, ``keeps`` is
    whether weights and batches are left in ``out``, so that a slow truth can be computed of them.
    """

    mode: str
    rank: int
    out: str
    fault: str = ""
    steps: int = STEPS
    keeps: bool = False
    micros: int = 1
    batch_size: int = 8

    @property
    def is_bad(self) -> bool:
        """Whether the fault is planted on this rank."""
        return bool(self.fault) and self.rank == BAD

    @property
    def lr(self) -> float:
        """The learning rate of this rank."""
        return 0.0 if self.is_bad and self.fault == "frozen" else LR

    def model(self) -> nn.Module:
        """The language model of 20k parameters that all ranks begin with."""
        return problem().model(seed=0)

    def dataset(self) -> Rows:
        """What all ranks read from; with shuffled labels on the bad rank."""
        rows = problem().dataset(SAMPLES, seed=1)
        if self.is_bad and self.fault == "labels shuffled":
            rows.columns["labels"] = rows.columns["labels"].roll(1, dims=0)
        return rows

    def loader(self) -> DataLoader[Any]:
        """The usual loader over ``dataset``, a ``DistributedSampler`` unless that is the fault."""
        if self.fault == "no sampler":
            generator = torch.Generator().manual_seed(0)
            return DataLoader(self.dataset(), batch_size=self.batch_size, shuffle=True, generator=generator)
        seed = 5 if self.is_bad and self.fault == "another data seed" else 0
        sampler: DistributedSampler[Any] = DistributedSampler(
            self.dataset(), num_replicas=WORLD, rank=self.rank, seed=seed
        )
        return DataLoader(self.dataset(), batch_size=self.batch_size, sampler=sampler)

    def batches(self) -> Iterator[list[dict[str, Tensor]]]:
        """The micro-batches of each step, epoch after epoch."""
        loader, epoch, step = self.loader(), 0, 0
        held: list[dict[str, Tensor]] = []
        while True:
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            for batch in loader:
                held.append(batch)
                if len(held) == self.micros:
                    self.keep_batches(step, held)
                    yield held
                    held, step = [], step + 1
                    if step == self.steps:
                        return
            epoch += 1

    def loss(self, logits_BLV: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """The loss of one micro-batch on this rank, mean over its tokens."""
        return scaled(loss_of(logits_BLV.float(), batch), self)

    def keep(self, step: int, weights: Callable[[], Mapping[str, Tensor]]) -> None:
        """Keep all weights as they are before ``step``; ``weights`` may gather them, so all ranks call it."""
        if self.keeps:
            whole = {name: tensor.detach().cpu().clone() for name, tensor in weights().items()}
            if self.rank == 0:
                self._keep("weights", step, whole)

    def keep_batches(self, step: int, micro_batches: list[dict[str, Tensor]]) -> None:
        """Keep what this rank reads in ``step``."""
        self._keep("batches", step, micro_batches)

    def end(self, weights: Mapping[str, Tensor], **said: Any) -> None:
        """Leave a digest of the final weights of this rank (whole or its own part), and what else is ``said``."""
        digest = hashlib.sha256()
        for name, tensor in weights.items():
            digest.update(
                name.encode() + tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            )
        Path(self.out).mkdir(parents=True, exist_ok=True)
        text = json.dumps({"weights": digest.hexdigest(), **said})
        Path(self.out, f"end-{self.rank}.json").write_text(text, encoding="utf-8")

    def _keep(self, what: str, step: int, value: Any) -> None:
        if self.keeps:
            Path(self.out).mkdir(parents=True, exist_ok=True)
            of = "" if what == "weights" else f"-{self.rank}"
            torch.save(value, Path(self.out, f"{what}-{step}{of}.pt"))


def problem() -> CausalLM:
    """What is learned, unless a framework brings its own model."""
    return CausalLM()


def loss_of(logits_BLV: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Mean cross-entropy of the next token."""
    return nn.functional.cross_entropy(logits_BLV[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def scaled(loss: Tensor, job: Job) -> Tensor:
    """The loss, or half as much again where that is the fault."""
    return loss * 1.5 if job.is_bad and job.fault == "loss x 1.5" else loss


def own_rank() -> int:
    """The rank of this process."""
    return dist.get_rank()
