"""I1. A rank is fed with other batches than it should be.

Who had it: samplers that are given rank 0 where no variable says it, batches that are broadcast by code for tensor
parallelism, slices of a list that overlap, iterators that begin again at every step; a node with other preprocessing:
no normalisation, another tokenizer, a shorter maximum length, images that decode to zeros, labels shifted twice.
Planted: each of these, on one rank of four where it is one node's.
Twin: the same loop with the batches as they are meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import DATA_OF_ONE_RANK, DATA_THAT_IS_NOT_SPLIT, ORDERS_OF_SAMPLERS, WEIGHTS_OF_TOKENS
from gallery.problems import IGNORED, CausalLM, Problem, Regression
from gallery.training import BATCH_SIZE, batches_of, epochs, fit, sharded_loader
from gallery.witness import fewer_samples, same_batches, samples_differ, shared_samples, trains_differently

BAD_RANK = 2
STEPS = 24


def rank_zero(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Every sampler is told that it is rank 0."""
    problem = Regression()
    dataset = problem.dataset(256)
    sampler: Any = DistributedSampler(dataset, ctx.world_size, 0 if faulty else ctx.rank)
    return fit(ctx, problem, batches=epochs(DataLoader(dataset, batch_size=BATCH_SIZE, sampler=sampler)))


def broadcast(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Rank 0 broadcasts its batch to all."""
    problem = Regression()
    return fit(ctx, problem, batches=_sent(batches_of(ctx, problem), faulty))


def _sent(batches: Iterator[Any], faulty: bool) -> Iterator[Any]:
    for batch in batches:
        for column in batch.values() if faulty else ():
            dist.broadcast(column, 0)
        yield batch


def overlapping(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Each rank slices its part from a list; the parts begin too close to each other."""
    problem = Regression()
    own = range(ctx.rank * (24 if faulty else 48), ctx.rank * (24 if faulty else 48) + 48)
    loader = DataLoader(problem.dataset(96).select(own), batch_size=BATCH_SIZE)
    return fit(ctx, problem, batches=epochs(loader))


def first_again(ctx: EntryContext, faulty: bool) -> nn.Module:
    """``next(iter(loader))`` at every step."""
    problem = Regression()
    loader = sharded_loader(ctx, problem.dataset(256))
    again = (next(iter(loader)) for _ in range(STEPS))
    return fit(ctx, problem, batches=again if faulty else epochs(loader))


def stuck(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The reader of one rank hangs, and its last batch comes again and again."""
    problem = Regression()
    return fit(ctx, problem, batches=_stuck(ctx, batches_of(ctx, problem), faulty), steps=STEPS)


def _stuck(ctx: EntryContext, batches: Iterator[Any], faulty: bool) -> Iterator[Any]:
    kept: Any = None
    for batch in batches:
        kept = batch if kept is None else kept
        yield kept if faulty and ctx.rank == BAD_RANK else batch


Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def preprocessed(ctx: EntryContext, faulty: bool, *, problem: Problem, change: Change) -> nn.Module:
    """One rank of four changes its batches."""
    batches = batches_of(ctx, problem)
    return fit(
        ctx,
        problem,
        batches=map(change, batches) if faulty and ctx.rank == BAD_RANK else batches,
        steps=STEPS,
        lr=0.01 if isinstance(problem, Regression) else None,
    )


def raw(batch: Any) -> Any:
    """Inputs that were not normalised."""
    return {**batch, "x": batch["x"] * 5 + 3}


def blank(batch: Any) -> Any:
    """Inputs that could not be decoded."""
    return {**batch, "x": torch.zeros_like(batch["x"])}


def shifted(batch: Any) -> Any:
    """Labels that are shifted by one more."""
    return {**batch, "labels": batch["labels"].roll(-1, 1)}


def shifted_twice(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The collator shifts the labels, and the loss does again."""
    problem = CausalLM()
    batches = batches_of(ctx, problem)
    return fit(ctx, problem, batches=(shifted(batch) if faulty else batch for batch in batches), steps=STEPS)


class Joined(nn.Module):
    """A model of two inputs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
        """What the model makes of both together."""
        return self.inner(torch.cat([x, beside], 1))


class Halves(Regression):
    """The regression with its features in two arguments; the second may be blank."""

    def __init__(self, *, blank: bool) -> None:
        super().__init__()
        self.blank = blank

    def model(self, *, seed: int = 0) -> nn.Module:
        """The same, of two inputs."""
        return Joined(super().model(seed=seed))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Mean squared error over the batch."""
        x, beside = batch["x"].chunk(2, 1)
        return functional.mse_loss(model(x, beside * (not self.blank)), batch["y"])


def half_blank(ctx: EntryContext, faulty: bool) -> nn.Module:
    """On one rank of four, features that another service looks up are zeros."""
    problem = Halves(blank=faulty and ctx.rank == BAD_RANK)
    return fit(ctx, problem, batches=batches_of(ctx, problem), steps=4 * STEPS, lr=0.1)


def short(batch: Any) -> Any:
    """Labels that end at a shorter maximum length."""
    labels = batch["labels"].clone()
    labels[:, 4:] = IGNORED
    return {**batch, "labels": labels}


def other_ids(batch: Any) -> Any:
    """Ids of another tokenizer."""
    ids = batch["input_ids"] * 11 % CausalLM.vocab_size
    return {**batch, "input_ids": ids, "labels": ids.clone()}


_same = variants(
    "I1", ("duplicate-data",), same_batches, ranks=(0, 1), family=DATA_THAT_IS_NOT_SPLIT, causes=("sampler-rank-wrong",)
)
OUTLIERS = ("worker-loss-outlier", "worker-grad-norm-outlier", "worker-direction-outlier")
_odd = variants(
    "I1",
    ("|".join(OUTLIERS),),
    trains_differently,
    may_find=("dispersion-high",),
    ranks=(BAD_RANK,),
    within=None,
    world_size=4,
    family=DATA_OF_ONE_RANK,
    causes=("other-data-on-rank",),
)

ENTRIES = (
    _same("", "every sampler is rank 0", rank_zero, may_find=("shard-overlap",)),
    _same("broadcast", "rank 0 broadcasts its batch", broadcast, causes=("sampler-not-used",)),
    _same(
        "overlap",
        "slices of ranks overlap",
        overlapping,
        must_find=("shard-overlap",),
        shows=shared_samples,
        within=None,
        family=ORDERS_OF_SAMPLERS,
        causes=("slices-overlap",),
    ),
    _same(
        "first",
        "the first batch comes at every step",
        first_again,
        must_find=("sample-repeats",),
        shows=fewer_samples,
        within=1,
        family=ORDERS_OF_SAMPLERS,
        causes=("batch-again",),
    ),
    _odd(
        "stuck",
        "one rank reads one batch again and again",
        stuck,
        must_find=("sample-repeats|" + "|".join(OUTLIERS),),
        shows=samples_differ,
        family=ORDERS_OF_SAMPLERS,
        causes=("batch-again", "other-data-on-rank"),
    ),
    _odd("raw", "one rank does not normalise its inputs", partial(preprocessed, problem=Regression(), change=raw)),
    _odd("blank", "the inputs of one rank are zeros", partial(preprocessed, problem=Regression(), change=blank)),
    _odd("beside", "the second input of one rank is zeros", half_blank),
    _odd(
        "shifted",
        "the labels of one rank are shifted twice",
        partial(preprocessed, problem=CausalLM(), change=shifted),
        must_find=("labels-misplaced",),
        may_find=OUTLIERS,
        causes=("labels-shifted-wrongly",),
    ),
    variants("I1", ("labels-misplaced",), trains_differently, ranks=(0, 1), within=None)(
        "shifted-everywhere",
        "labels are shifted twice, by the collator and by the model",
        shifted_twice,
        family=DATA_OF_ONE_RANK,
        causes=("labels-shifted-wrongly",),
        variant_of="I1.shifted",
    ),
    _odd(
        "short",
        "one rank cuts its labels at a shorter length",
        partial(preprocessed, problem=CausalLM(), change=short),
        must_find=("token-imbalance",),
        may_find=(*OUTLIERS, "token-weights-differ"),
        family=WEIGHTS_OF_TOKENS,
        causes=("tokens-weighted-unequally", "other-data-on-rank"),
    ),
    _odd("ids", "one rank has another tokenizer", partial(preprocessed, problem=CausalLM(), change=other_ids)),
)
