"""What the virtual workers train on, and the many ways in which training is healthy.

Letters: M samples of the data set, N workers, B samples a worker and step, L sequence length, F features.
"""

from __future__ import annotations

import functools
import sysconfig
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from studies.judgement.models import LENGTH, VOCAB, ConvNet, LanguageModel, Model, Perceptron
from torch import Tensor

Dropout = Literal["none", "own", "same"]


@dataclass(frozen=True)
class Rows:
    """A data set: columns of M rows, and how hard each row is by itself (any unit)."""

    columns: dict[str, Tensor]
    difficulty: Tensor

    def __len__(self) -> int:
        return len(self.difficulty)


@dataclass(frozen=True)
class Workload:
    """One kind of training. ``micro`` micro-batches a step; learning rates are of AdamW, or of SGD with momentum.

    ``order``: "reshuffled" each epoch over all workers (DistributedSampler with set_epoch), "shards" that stay with a
    worker and are shuffled inside, "uneven" shards whose last batches are shorter at some workers, a "curriculum" from
    easy to hard, or "streams": each sample continues the one before it at its place in the worker's batch.
    """

    name: str
    model: Model
    rows: Callable[[int], Rows]
    batch: int
    lr: float
    micro: int = 1
    dropout: Dropout = "none"
    order: Literal["reshuffled", "shards", "uneven", "curriculum", "streams"] = "reshuffled"
    schedule: Literal["constant", "warm-up", "spike"] = "constant"
    sgd: bool = False
    token_weighted: bool = False

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        if self.schedule == "warm-up":
            return self.lr * min(1.0, (step + 1) / 200)
        if self.schedule == "spike":
            return self.lr * min(1.0, (step + 1) / 50) * (10 if 400 <= step < 410 else 1)
        return self.lr


def text_rows(seed: int, *, masks: Literal["whole", "uneven", "very uneven"] = "whole", num_rows: int = 6000) -> Rows:
    """Windows of L + 1 characters of the standard library's sources; ``mask`` says which targets count.

    Uneven masks keep the last 1 to L tokens, as response-only losses do; very uneven ones a lognormal number.
    """
    draw = torch.Generator().manual_seed(seed)
    text = _library()
    starts = torch.randint(len(text) - LENGTH - 1, (num_rows,), generator=draw)
    ids = text[starts[:, None] + torch.arange(LENGTH + 1)]
    kept = torch.full((num_rows,), LENGTH)
    if masks == "uneven":
        kept = torch.randint(1, LENGTH + 1, (num_rows,), generator=draw)
    elif masks == "very uneven":
        kept = torch.randn(num_rows, generator=draw).mul(1.2).exp().mul(3).round().clamp(1, LENGTH).long()
    mask = (torch.arange(LENGTH) >= LENGTH - kept[:, None]).float()
    rarity = -torch.bincount(text, minlength=VOCAB).double().div(len(text)).clamp(min=1e-9).log()
    return Rows({"ids": ids, "mask": mask}, rarity[ids].mean(1))


def running_rows(seed: int, *, num_rows: int = 6000) -> Rows:
    """Windows that follow each other in the text, each going on where the one before it ended."""
    text = _library()
    first = int(torch.randint(len(text) - LENGTH * (num_rows + 1), (1,), generator=torch.Generator().manual_seed(seed)))
    starts = first + LENGTH * torch.arange(num_rows)
    ids = text[starts[:, None] + torch.arange(LENGTH + 1)]
    return Rows({"ids": ids, "mask": torch.ones(num_rows, LENGTH)}, torch.zeros(num_rows))


def class_rows(seed: int, *, num_rows: int = 6000) -> Rows:
    """16 features, 8 classes of a random teacher whose scores are noisy, more so for some rows."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, 16, generator=draw)
    noise = 2 * torch.rand(num_rows, generator=draw)
    scores = x @ torch.randn(16, 8, generator=draw) / 2 + noise[:, None] * torch.randn(num_rows, 8, generator=draw)
    return Rows({"x": x, "y": scores.argmax(1), "mask": torch.ones(num_rows)}, noise)


def heavy_rows(seed: int, *, num_rows: int = 6000) -> Rows:
    """Regression whose inputs have Cauchy tails (clipped at 30) and whose noise has Student tails (2 degrees)."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, 16, generator=draw) / torch.randn(num_rows, 1, generator=draw)
    x = x.clamp(-30, 30) / 3
    chi2 = torch.randn(num_rows, 2, generator=draw).square().sum(1)
    noise = 0.3 * torch.randn(num_rows, generator=draw) / (chi2 / 2).sqrt()
    y = (x @ torch.randn(16, generator=draw) / 4).tanh() * 2 + noise
    return Rows({"x": x, "y": y, "mask": torch.ones(num_rows)}, noise.abs().double())


def image_rows(seed: int, *, num_rows: int = 6000) -> Rows:
    """8 x 8 images of four classes: a prototype each, with noise that differs between rows."""
    draw = torch.Generator().manual_seed(seed)
    label = torch.randint(4, (num_rows,), generator=draw)
    noise = 1 + 2 * torch.rand(num_rows, generator=draw)
    images = torch.randn(4, 8, 8, generator=draw)[label]
    images = images + noise[:, None, None] * torch.randn(num_rows, 8, 8, generator=draw)
    return Rows({"x": images, "y": label, "mask": torch.ones(num_rows)}, noise)


TEXT = Workload("LM", LanguageModel(), text_rows, batch=4, lr=2e-3)
CLASSES = Workload("MLP", Perceptron(), class_rows, batch=16, lr=2e-3)
HEAVY = Workload("MLP, heavy-tailed batches", Perceptron(outputs=1, regression=True), heavy_rows, batch=8, lr=1e-3)
IMAGES = Workload("conv net with BatchNorm", ConvNet(), image_rows, batch=8, lr=3e-3)
FEW = functools.partial(class_rows, num_rows=512)
UNEVEN = functools.partial(text_rows, masks="uneven")
VERY_UNEVEN = functools.partial(text_rows, masks="very uneven")

HEALTHY: tuple[Workload, ...] = (
    TEXT,
    replace(TEXT, name="LM, dropout, own seeds", dropout="own"),
    replace(TEXT, name="LM, dropout, one seed", dropout="same"),
    replace(TEXT, name="LM, uneven masks", rows=UNEVEN),
    replace(TEXT, name="LM, very uneven masks, token-weighted", rows=VERY_UNEVEN, token_weighted=True),
    replace(TEXT, name="LM, curriculum, warm-up", order="curriculum", schedule="warm-up"),
    replace(TEXT, name="LM, accumulation of 2", micro=2, rows=UNEVEN),
    replace(CLASSES, name="MLP, warm-up, spike of the learning rate", schedule="spike"),
    replace(CLASSES, name="MLP, SGD, dropout", sgd=True, lr=0.1, dropout="own"),
    replace(CLASSES, name="MLP, accumulation of 4", micro=4),
    replace(CLASSES, name="MLP, uneven last batches", order="uneven"),
    replace(CLASSES, name="MLP, fixed shards, many epochs", order="shards", rows=FEW, batch=8),
    replace(CLASSES, name="MLP, memorises 512 rows", rows=FEW, lr=1e-2),
    HEAVY,
    IMAGES,
    replace(IMAGES, name="conv net with BatchNorm, SGD", sgd=True, lr=0.1, batch=16),
)

OUTSIDE: tuple[Workload, ...] = (replace(TEXT, name="LM, documents read in order", rows=running_rows, order="streams"),)
"""Healthy, but outside the null: what a worker reads next depends on what it, and no other, has just read."""


@functools.cache
def _library() -> Tensor:
    """int64 [characters]: some of the installed standard library, in its 63 most frequent characters and one more."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120]
    text = "".join(path.read_text(encoding="utf-8", errors="replace")[:20_000] for path in paths)
    known = {char: index for index, (char, _) in enumerate(Counter(text).most_common(VOCAB - 1))}
    return torch.tensor([known.get(char, VOCAB - 1) for char in text])
