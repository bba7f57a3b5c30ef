"""A3. Only one term of the loss is divided by the micro-batches.

Who had it: mixtures of experts whose balance loss is added to a cross-entropy that the Trainer of transformers divides
by the tokens of all micro-batches (`num_items_in_batch`), penalties that are added to a divided loss.
Planted: a balance loss beside a divided cross-entropy; one beside a sum over the tokens of all micro-batches; a
cross-entropy that is divided twice, as by a loop and the framework's backward.
Twin: both are divided; divided once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import DIVISORS
from gallery.problems import Vision
from gallery.training import BATCH_SIZE, batches_of, usual_optimizer, wrapped
from gallery.witness import trains_differently

NUM_MICRO, STEPS = 4, 4


LossOf = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Of logits and labels of a micro-batch: what backward is called on, and the part of it that is noted."""


def _train(ctx: EntryContext, loss_of: LossOf) -> nn.Module:
    problem = Vision()
    model = wrapped(problem.model())
    optimizer, batches = usual_optimizer(problem, model), batches_of(ctx, problem)
    watching = ctx.watch(model, optimizer)
    for _ in range(STEPS):
        micros: list[Any] = [next(batches) for _ in range(NUM_MICRO)]
        with watching.step(micros):
            total = 0.0
            for batch in micros:
                whole, loss = loss_of(model(batch["image"]), batch["label"])
                whole.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
        ctx.note(micros, total)
    watching.close()
    return model


def _beside_balance(faulty: bool, *, reduction: str, over: int) -> LossOf:
    """A cross-entropy that is divided, and a balance of the classes that is not."""

    def loss_of(logits_BC: Tensor, label_B: Tensor) -> tuple[Tensor, Tensor]:
        loss = functional.cross_entropy(logits_BC, label_B, reduction=reduction) / over
        balance = 0.1 * _balance(logits_BC)
        return loss + (balance if faulty else balance / NUM_MICRO), loss

    return loss_of


def _balance(logits_BC: Tensor) -> Tensor:
    return torch.linalg.vector_norm(logits_BC.softmax(-1).mean(0))


def divided(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The mean cross-entropy, divided by the micro-batches."""
    return _train(ctx, _beside_balance(faulty, reduction="mean", over=NUM_MICRO))


def by_targets(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The sum, divided by the targets of all micro-batches."""
    return _train(ctx, _beside_balance(faulty, reduction="sum", over=NUM_MICRO * BATCH_SIZE))


def twice(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The mean cross-entropy, divided by the micro-batches by the loop and by what it hands the loss to."""

    def loss_of(logits_BC: Tensor, label_B: Tensor) -> tuple[Tensor, Tensor]:
        loss = functional.cross_entropy(logits_BC, label_B)
        return (loss / NUM_MICRO if faulty else loss) / NUM_MICRO, loss

    return _train(ctx, loss_of)


_fault = variants(
    "A3", ("term-not-divided",), trains_differently, ranks=(0, 1), family=DIVISORS, causes=("term-not-divided",)
)

ENTRIES = (
    _fault("", "a balance loss that is not divided by the micro-batches", divided),
    _fault(
        "by-targets", "a balance loss beside a sum over the targets of all micro-batches", by_targets, variant_of="A3"
    ),
    _fault(
        "twice",
        "a loss that is divided by the micro-batches twice",
        twice,
        must_find=("divided-twice",),
        may_find=("loss-scale-wrong",),
        causes=("divided-by-both",),
    ),
)
