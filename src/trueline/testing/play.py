"""One run of one entry on this rank; what the gallery and the tests send to a pool of ranks."""

from __future__ import annotations

import random

import numpy
import torch

from trueline.testing.entry import Variant, all_entries, train
from trueline.testing.seat import Seat
from trueline.testing.witness import Witness, testify

SEED = 0


def play(
    rank: int, world_size: int, entry_id: str, variant: Variant, out: str | None = None, explicit: bool = True
) -> Witness:
    """Train entry ``entry_id`` as ``variant`` on this rank and testify; watched into ``out`` unless that is None.

    The global generators start from one seed, equal on all ranks, so that a run does not depend on the one before.
    """
    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.manual_seed(SEED)
    entry = next(entry for entry in all_entries() if entry.id == entry_id)
    seat = Seat(rank, world_size, out, explicit)
    model = train(entry, variant, seat)
    return testify(rank, model, seat.losses, seat.samples)
