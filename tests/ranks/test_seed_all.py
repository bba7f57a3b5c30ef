"""Ranks draw the same numbers from one seed, and different ones where each is to have its own."""

import random

import numpy as np
import pytest
import torch

import trueline
from trueline.demo.ranks import Ranks


def draws(rank, world, per_rank):
    report = trueline.seed_all(40, per_rank=per_rank)
    drawn = random.random(), float(np.random.rand()), float(torch.rand(()))
    return drawn, report.seed, report.rank, torch.nn.Linear(3, 3).weight.tolist()


@pytest.fixture(scope="module")
def pool():
    with Ranks(2) as ranks:
        yield ranks


def test_ranks_share_streams_and_initial_weights_by_default(pool):
    (drawn, seed, _, weight), (drawn_1, seed_1, rank_1, weight_1) = pool.run(draws, False)
    assert (drawn, weight, seed) == (drawn_1, weight_1, seed_1)
    assert (seed, rank_1) == (40, 1)


def test_per_rank_every_stream_is_that_of_the_seed_plus_the_rank(pool):
    (drawn, _, _, _), (drawn_1, seed_1, _, _) = pool.run(draws, True)
    assert all(mine != theirs for mine, theirs in zip(drawn, drawn_1, strict=True))
    assert seed_1 == 41
    assert drawn_1 == (
        random.Random(41).random(),
        float(np.random.RandomState(41).rand()),
        float(torch.rand((), generator=torch.Generator().manual_seed(41))),
    )
