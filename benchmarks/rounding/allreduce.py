"""A real all-reduce (gloo, in processes): its error, and its difference under another numbering of the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from trueline.analyze.compare.expect.rounding import order_difference_rel, sum_error_rel, unit_roundoff
from trueline.testing.ranks import run_ranks
from trueline.trials.noise import Question, workers_gradients

ELEMENTS = 65_536


@dataclass(frozen=True)
class AllReduce:
    """Measured over expected error, and difference, of one setting."""

    dtype: str
    ranks: int
    cosine: float
    error: float
    difference: float


def all_reduces() -> Iterator[AllReduce]:
    """Of all dtypes, with 3 and 4 ranks."""
    for ranks in (3, 4):
        for dtype in ("float32", "bfloat16", "float16"):
            for cosine in (0.0, 0.5):
                yield _one(Question(ranks, ELEMENTS, dtype, cosine=cosine))


def _one(question: Question) -> AllReduce:
    exact = _terms(question).double().sum(0)
    first, second = (run_ranks(_reduced, question.workers, question, swapped)[0].double() for swapped in (False, True))
    u = unit_roundoff(question.dtype)
    error = sum_error_rel(question.workers, order="ring", u=u, mean_cosine=question.cosine)
    difference = order_difference_rel(question.workers, u=u, mean_cosine=question.cosine)
    norm = float(exact.norm())
    return AllReduce(
        question.dtype,
        question.workers,
        question.cosine,
        float((first - exact).norm()) / norm / error,
        float((first - second).norm()) / norm / difference,
    )


def _reduced(rank: int, _: int, question: Question, swapped: bool) -> Tensor:
    """What a rank gets, with the gradients of ranks 0 and 1 swapped or not: they then meet others first."""
    own = _terms(question)[1 - rank if swapped and rank < 2 else rank].clone()
    distributed.all_reduce(own)
    return own


def _terms(question: Question) -> Tensor:
    return workers_gradients(question, question.elements, torch.Generator().manual_seed(question.seed))
