"""W1. Means over micro-batches of unequal numbers of tokens are averaged.

Who had it: gradient accumulation in Hugging Face's Trainer and in those that had copied it, until October 2024
(transformers#34191).
Planted: three micro-batches a step with 7, 60 and 30 labels, each with the mean over its own.
Twin: the same labels, the sum over them divided by all of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import WEIGHTS_OF_TOKENS
from gallery.problems import IGNORED, CausalLM
from gallery.training import batches_of, fit_accumulating
from gallery.witness import trains_differently

COUNTS = (7, 60, 30)


def accumulated(ctx: EntryContext, faulty: bool) -> nn.Module:
    """DDP, reduced at the last of three micro-batches."""
    problem = CausalLM()

    def by_tokens(model: nn.Module, batch: Any, micro: int) -> Tensor:
        logits_BLV = model(batch["input_ids"])[:, :-1]
        total = functional.cross_entropy(logits_BLV.flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")
        return total * len(COUNTS) / sum(COUNTS)

    return fit_accumulating(
        ctx,
        problem,
        batches=_masked(batches_of(ctx, problem)),
        num_micro=len(COUNTS),
        loss_of=None if faulty else by_tokens,
    )


def _masked(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches with the first of their labels, as many as ``COUNTS`` has in turn."""
    for number, batch in enumerate(batches):
        labels_BL = batch["labels"].clone()
        counted = labels_BL[:, 1:].flatten()
        counted[COUNTS[number % len(COUNTS)] :] = IGNORED
        labels_BL[:, 1:] = counted.view(len(labels_BL), -1)
        yield {**batch, "labels": labels_BL}


_fault = variants(
    "W1",
    ("token-weights-differ",),
    trains_differently,
    ranks=(0, 1),
    family=WEIGHTS_OF_TOKENS,
    causes=("tokens-weighted-unequally",),
)

ENTRIES = (_fault("", "means over micro-batches of unequal numbers of tokens are averaged", accumulated),)
