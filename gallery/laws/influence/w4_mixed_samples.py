"""W4. What a model returns for a sample depends on the other samples of its batch, or on its padding.

Who had it: everybody who wrote `view` for `transpose`, forgot `batch_first`, normalised over dimension 0, or pooled
without the mask.
Planted: these four.
Twin: transposed; `batch_first`; over the last dimension; pooled with the mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import MASKS_OF_ATTENTION, SAMPLES_THAT_ARE_MIXED
from gallery.problems import Rows
from gallery.training import fit, wrapped
from gallery.witness import trains_differently

STEP = 3


class Sentences:
    """Which of three words a padded sentence has most of: B sentences of L words, width D."""

    num_words, num_classes, length, width = 16, 3, 10, 16

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def model(self, *, seed: int = 0) -> nn.Module:
        """The same for the same ``seed``."""
        torch.manual_seed(seed)
        return _Reader(self)

    def dataset(self, num_samples: int, *, seed: int = 0) -> Rows:
        """``ids`` and ``attention_mask`` [num_samples, L] int64, ``label`` [num_samples]."""
        draw = torch.Generator().manual_seed(seed)
        ids_BL = torch.randint(self.num_words, (num_samples, self.length), generator=draw)
        words_B1 = torch.randint(3, self.length, (num_samples, 1), generator=draw)
        mask_BL = (torch.arange(self.length) < words_B1).long()
        label_B = (functional.one_hot(ids_BL, self.num_words) * mask_BL[..., None]).sum(1)[:, : self.num_classes]
        return Rows({"ids": ids_BL, "attention_mask": mask_BL, "label": label_B.argmax(1)})

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean cross-entropy over the batch."""
        return functional.cross_entropy(model(batch["ids"], attention_mask=batch["attention_mask"]), batch["label"])

    def tokens(self, batch: Any) -> float:
        """Sentences."""
        return float(len(batch["label"]))


class _Reader(nn.Module):
    def __init__(self, task: Sentences) -> None:
        super().__init__()
        self.fault = task.fault
        self.embed = nn.Embedding(task.num_words, task.width)
        self.encode = nn.GRU(task.width, task.width, batch_first=self.fault != "batch-first")
        self.score = nn.Linear(task.width, 1)
        self.head = nn.Linear(task.width, task.num_classes)

    def forward(self, ids_BL: Tensor, attention_mask: Tensor) -> Tensor:
        x_BLD = self.embed(ids_BL)
        if self.fault == "view":
            batch, length, width = x_BLD.shape
            x_BLD = x_BLD.view(length, batch, width).transpose(0, 1)
        x_BLD = x_BLD + self.encode(x_BLD)[0]
        hidden_BL1 = attention_mask[..., None] == 0
        score_BL1 = self.score(x_BLD)
        if self.fault != "padding":
            score_BL1 = score_BL1.masked_fill(hidden_BL1, -torch.inf)
        share_BL1 = score_BL1.softmax(1)
        if self.fault == "softmax":
            share_BL1 = score_BL1.masked_fill(hidden_BL1, -1e4).softmax(0)
        return self.head((share_BL1 * x_BLD).sum(1))


def mixed(fault: str) -> Any:
    """Training of a model that has this fault."""

    def train(ctx: EntryContext, faulty: bool) -> nn.Module:
        problem = Sentences(fault if faulty else "")
        model: Any = problem.model() if ctx.world_size == 1 else wrapped(problem.model())
        return fit(ctx, problem, model, plan={"influence": STEP})

    return train


_fault = variants(
    "W4",
    ("batch-leak",),
    trains_differently,
    step=STEP,
    world_size=1,
    ranks=(0,),
    family=SAMPLES_THAT_ARE_MIXED,
    causes=("samples-mixed",),
)

ENTRIES = (
    _fault("", "`view` where `transpose` was meant mixes words of all sentences of a batch", mixed("view")),
    _fault(
        "batch-first",
        "recurrence runs over the batch: `batch_first` is forgotten",
        mixed("batch-first"),
        world_size=2,
        ranks=(0, 1),
    ),
    _fault("softmax", "attention of a pooling is normalised over the batch", mixed("softmax")),
    _fault(
        "padding",
        "attention of a pooling sees padding",
        mixed("padding"),
        family=MASKS_OF_ATTENTION,
        causes=("padding-is-seen",),
    ),
)
