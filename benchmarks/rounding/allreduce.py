"""A real all-reduce (gloo, in processes): its error, and its difference under another numbering of the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from trueline.comparison.expect.rounding import order_difference_rel, sum_error_rel, unit_roundoff
from trueline.demo.ranks import run_ranks
from trueline.trials.noise import SumSetup, workers_gradients

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
                yield _one(SumSetup(ranks, ELEMENTS, dtype, cosine=cosine))


def _one(setup: SumSetup) -> AllReduce:
    exact = _terms(setup).double().sum(0)
    first, second = (run_ranks(_reduced, setup.workers, setup, swapped)[0].double() for swapped in (False, True))
    u = unit_roundoff(setup.dtype)
    error = sum_error_rel(setup.workers, order="ring", u=u, mean_cosine=setup.cosine)
    difference = order_difference_rel(setup.workers, u=u, mean_cosine=setup.cosine)
    norm = float(exact.norm())
    return AllReduce(
        setup.dtype,
        setup.workers,
        setup.cosine,
        float((first - exact).norm()) / norm / error,
        float((first - second).norm()) / norm / difference,
    )


def _reduced(rank: int, _: int, setup: SumSetup, swapped: bool) -> Tensor:
    """What a rank gets, with the gradients of ranks 0 and 1 swapped or not: they then meet others first."""
    own = _terms(setup)[1 - rank if swapped and rank < 2 else rank].clone()
    distributed.all_reduce(own)
    return own


def _terms(setup: SumSetup) -> Tensor:
    return workers_gradients(setup, setup.elements, torch.Generator().manual_seed(setup.seed))
