"""D5. The labels of one rank do not belong to its samples.

Who had it: data that is shuffled by a seed of its own for inputs and for labels, another preprocessing or label map in
one worker's container, a cache of labels from an earlier order. The rank learns noise; the mean over ranks hides it.
Planted: all labels of one rank permuted within the batch; a quarter of them random; another label map; data that is
harder, which must not be called a scale; under DDP, FSDP2 and a hand-written all-reduce; of two workers and of four,
from the first step or later.
Twin: samples and labels permuted together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import DATA_OF_ONE_RANK
from gallery.problems import CausalLM, Vision
from gallery.sharding import sharded
from gallery.training import adamw, batches_of, fit, mean_gradients
from gallery.witness import trains_differently

BAD_RANK = 2
LATER = 28
"""The step from which labels that go wrong later do: by then two workers' own histories tell which of them jumped."""

Spoil = Callable[[dict[str, torch.Tensor], torch.Generator], dict[str, torch.Tensor]]


def permuted(batch: dict[str, torch.Tensor], draw: torch.Generator) -> dict[str, torch.Tensor]:
    """Labels in another order than the images."""
    return {**batch, "label": batch["label"][torch.randperm(len(batch["label"]), generator=draw)]}


def noisy(batch: dict[str, torch.Tensor], draw: torch.Generator) -> dict[str, torch.Tensor]:
    """A third of the labels drawn at random."""
    label_B = batch["label"]
    random_B = torch.randint(Vision.num_classes, label_B.shape, generator=draw)
    return {**batch, "label": torch.where(torch.rand(label_B.shape, generator=draw) < 1 / 3, random_B, label_B)}


def remapped(batch: dict[str, torch.Tensor], draw: torch.Generator) -> dict[str, torch.Tensor]:
    """Two classes swapped."""
    del draw
    return {**batch, "label": torch.tensor([1, 0, *range(2, Vision.num_classes)])[batch["label"]]}


def harder(batch: dict[str, torch.Tensor], draw: torch.Generator) -> dict[str, torch.Tensor]:
    """Images under as much noise again."""
    return {**batch, "image": batch["image"] + 1.5 * torch.randn(batch["image"].shape, generator=draw)}


def images(
    ctx: EntryContext, faulty: bool, *, spoil: Spoil = permuted, bad: int = BAD_RANK, first: int = 0, steps: int = 24
) -> nn.Module:
    """A conv net under DDP, with the samples of rank ``bad`` spoilt from step ``first`` on."""
    batches = _spoilt(ctx, spoil if faulty else _turned, here=ctx.rank == bad or not faulty, first=first)
    return fit(ctx, Vision(), batches=batches, steps=steps)


def text(ctx: EntryContext, faulty: bool, *, under_fsdp: bool = False) -> nn.Module:
    """A causal LM whose labels are permuted over all positions of the batch on one rank; reduced by hand, or FSDP2."""
    problem = CausalLM()
    model = sharded(problem.model()) if under_fsdp else problem.model()
    draw = torch.Generator().manual_seed(ctx.rank)

    def reduce(step: int) -> None:
        if not under_fsdp:
            mean_gradients(model.parameters())

    def mixed() -> Iterator[Any]:
        for batch in batches_of(ctx, problem, num_samples=4096, batch_size=16):
            if faulty and ctx.rank == BAD_RANK:
                labels_BL = batch["labels"]
                order = torch.randperm(labels_BL.numel(), generator=draw)
                batch["labels"] = labels_BL.flatten()[order].view_as(labels_BL)
            yield batch

    return fit(ctx, problem, model, optimizer=adamw(model, lr=1e-2), batches=mixed(), steps=20, after_backward=reduce)


def _spoilt(ctx: EntryContext, spoil: Spoil, *, here: bool, first: int = 0) -> Iterator[Any]:
    draw = torch.Generator().manual_seed(ctx.rank)
    for step, batch in enumerate(batches_of(ctx, Vision(), num_samples=4096, batch_size=16)):
        yield spoil(batch, draw) if here and step >= first else batch


def _turned(batch: dict[str, torch.Tensor], draw: torch.Generator) -> dict[str, torch.Tensor]:
    """Images and labels in the same new order."""
    order = torch.randperm(len(batch["label"]), generator=draw)
    return {name: column[order] for name, column in batch.items()}


ALSO = ("worker-grad-norm-outlier", "worker-direction-outlier")

_of_four = variants(
    "D5",
    ("worker-loss-outlier",),
    trains_differently,
    may_find=ALSO,
    ranks=(BAD_RANK,),
    within=None,
    world_size=4,
    family=DATA_OF_ONE_RANK,
    causes=("labels-wrong-on-rank",),
)
_of_two = variants(
    "D5",
    ("worker-loss-outlier",),
    trains_differently,
    may_find=(*ALSO, "dispersion-high"),
    within=None,
    family=DATA_OF_ONE_RANK,
    causes=("labels-wrong-on-rank",),
    variant_of="D5",
)

ENTRIES = (
    _of_four("", "labels of one rank of four permuted", images),
    _of_four("noisy", "a third of the labels of one rank of four random", partial(images, spoil=noisy, steps=28)),
    _of_four("map", "another label map on one rank of four", partial(images, spoil=remapped, steps=28)),
    _of_four(
        "harder",
        "harder data on one rank of four",
        partial(images, spoil=harder, steps=28),
        causes=("other-data-on-rank",),
    ),
    _of_four("by-hand", "labels of one rank of four permuted, hand-written all-reduce", text, variant_of="D5"),
    _of_four(
        "fsdp",
        "labels of a causal LM permuted on one rank of four, FSDP2",
        partial(text, under_fsdp=True),
        variant_of="D5",
    ),
    _of_two(
        "pair", "labels of one rank of two permuted: who is undecided", partial(images, bad=1, steps=36), ranks=(0, 1)
    ),
    _of_two(
        "pair-later",
        "labels of one rank of two permuted from one step on",
        partial(images, bad=1, first=LATER, steps=60),
        ranks=(1,),
        step=LATER,
    ),
)
