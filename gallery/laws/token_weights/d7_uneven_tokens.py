"""D7. Workers average over unequal numbers of tokens, and the means are averaged with equal weight.

Who had it: Hugging Face #34191 and the trainers that had copied the formula: gradient accumulation and data parallelism
took the mean of means, so that a token of a short batch counted several times. Found by comparing runs with other
batch splits.
Planted: one rank of two, and of four, that has an eighth of the labels of the others; counts that jump between almost
none and all.
Twin: the same counts, going from rank to rank, each token weighing the same over all ranks; and, for the counts that
jump, token counts as unequal as those of ordinary texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import WEIGHTS_OF_TOKENS
from gallery.problems import IGNORED, CausalLM
from gallery.training import batches_of, fit
from gallery.witness import trains_differently

BAD_RANK = 1
BATCH_SIZE = 16
WILD, ORDINARY = 1.5, 0.5
"""Standard deviations of the log of token counts."""


def an_eighth(ctx: EntryContext, faulty: bool, *, steps: int) -> nn.Module:
    """Rank 1 keeps an eighth of its labels; the twin's short rank is another one at each step, and it weighs tokens."""
    problem = CausalLM()

    def kept(step: int) -> float:
        short = BAD_RANK if faulty else step % ctx.world_size
        return 1 / 8 if ctx.rank == short else 1.0

    batches = _masked(_fresh(ctx, problem), kept)
    loss_of = problem.loss if faulty else partial(_weighing_tokens, ctx)
    return fit(ctx, problem, batches=batches, steps=steps, loss_of=loss_of)


def wild(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Log-normal numbers of labels on every rank, averaged with equal weight."""
    problem = CausalLM()
    draw = torch.Generator().manual_seed(ctx.rank)
    sigma = WILD if faulty else ORDINARY

    def kept(step: int) -> float:
        return min(1.0, 0.2 * float(torch.exp(sigma * torch.randn((), generator=draw))))

    return fit(ctx, problem, batches=_masked(_fresh(ctx, problem), kept), steps=32)


def _fresh(ctx: EntryContext, problem: CausalLM) -> Iterator[Any]:
    return batches_of(ctx, problem, num_samples=4096, batch_size=BATCH_SIZE)


def _masked(batches: Iterator[Any], kept: Any) -> Iterator[Any]:
    """The batches with the given fraction of their labels, from the front, one at least."""
    for step, batch in enumerate(batches):
        labels_BL = batch["labels"].clone()
        counted = labels_BL[:, 1:].flatten()
        counted[max(1, round(kept(step) * len(counted))) :] = IGNORED
        labels_BL[:, 1:] = counted.view(len(labels_BL), -1)
        yield {**batch, "labels": labels_BL}


def _weighing_tokens(ctx: EntryContext, called: nn.Module, batch: Any) -> Tensor:
    """The sum over this rank's tokens, over the mean number of tokens of a rank."""
    labels_BL = batch["labels"][:, 1:]
    num_tokens = (labels_BL != IGNORED).sum().float()
    dist.all_reduce(num_tokens)
    logits_BLV = called(batch["input_ids"])[:, :-1]
    total = functional.cross_entropy(logits_BLV.flatten(0, 1), labels_BL.flatten(), reduction="sum")
    return total * ctx.world_size / num_tokens


ALSO = ("worker-grad-norm-outlier", "worker-direction-outlier", "token-weights-differ")

_fault = variants(
    "D7",
    ("token-imbalance",),
    trains_differently,
    may_find=ALSO,
    ranks=(1,),
    within=None,
    world_size=4,
    family=WEIGHTS_OF_TOKENS,
    causes=("tokens-weighted-unequally",),
    variant_of="D7",
)

ENTRIES = (
    _fault("", "an eighth of the tokens on one rank of four, equal weights", partial(an_eighth, steps=24)),
    _fault(
        "pair", "an eighth of the tokens on one rank of two, equal weights", partial(an_eighth, steps=32), world_size=2
    ),
    _fault("wild", "token counts that jump, equal weights", wild, ranks=(0, 1, 2, 3)),
)
