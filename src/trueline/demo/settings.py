"""The six settings: what each does to the seeds, the sampler, the loss and the labels of which rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SeedRule = Literal["shared", "rank-0-differs", "all-differ"]
SEED_STRIDE = 1009
"""Between the seeds of two ranks: a sampler adds the epoch to its seed, so seeds 1 apart would repeat orders."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to train. ``name`` is the directory of its Run, ``planted`` the description that a reader sees.

    ``seeds`` govern the sampler and every generator of a rank (dropout). ``found_by`` is the check that judges what was
    planted; empty where nothing was.
    """

    name: str
    planted: str
    seeds: SeedRule = "shared"
    distributed_sampler: bool = True
    scaled_loss: float = 1.0
    shuffled_labels: bool = False
    found_by: str = ""

    def seed(self, rank: int, *, base: int) -> int:
        """The seed of ``rank`` for its sampler and its generators."""
        odd = {"shared": 0, "rank-0-differs": int(rank == 0), "all-differ": rank}[self.seeds]
        return base + SEED_STRIDE * odd

    def loss_factor(self, rank: int, *, world_size: int) -> float:
        """What the loss of ``rank`` is multiplied by before backward; 1.0 for a healthy rank."""
        return self.scaled_loss if rank == odd_rank(world_size) else 1.0

    def shuffles_labels(self, rank: int, *, world_size: int) -> bool:
        """Whether ``rank`` learns from permuted labels."""
        return self.shuffled_labels and rank == odd_rank(world_size)

    def planted_text(self, world_size: int) -> str:
        """``planted`` with the rank that it concerns filled in."""
        return self.planted.format(odd=odd_rank(world_size))


def odd_rank(world_size: int) -> int:
    """The rank that loss and label faults are planted into: one in the middle, so that being first gives no hint."""
    return world_size // 2


SETTINGS: tuple[Setting, ...] = (
    Setting("s1-1", "healthy: every rank has the same sampler seed"),
    Setting("s1-2", "rank 0 has another seed than the others", seeds="rank-0-differs", found_by="shard-overlap"),
    Setting("s1-3", "every rank has a seed of its own", seeds="all-differ", found_by="shard-overlap"),
    Setting(
        "no-sampler",
        "no DistributedSampler: every rank reads the whole data in the same order",
        distributed_sampler=False,
        found_by="duplicate-data",
    ),
    Setting("loss-scale", "the loss of rank {odd} is doubled", scaled_loss=2.0, found_by="worker-scale"),
    Setting("labels", "the labels of rank {odd} are shuffled", shuffled_labels=True, found_by="worker-loss-outlier"),
)
