"""Declarations of all workers' training DataLoaders about how they sample, taken together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trueline.judge.compared_ranks import odd_ranks
from trueline.schema.files.run_manifest import RankEnv


@dataclass(frozen=True)
class DeclaredSampling:
    """``RankEnv.data`` of every worker, by rank; an empty dict where a rank left none."""

    by_rank: dict[int, dict[str, Any]]

    def all_equal(self, key: str) -> Any:
        """The value that every worker declared for ``key``, or None where one did not or two differ."""
        values = [facts.get(key) for facts in self.by_rank.values()]
        return values[0] if values and all(value == values[0] for value in values) else None

    def of_each(self, key: str) -> dict[int, Any] | None:
        """The value of ``key`` by rank, or None where a worker left it open."""
        values = {rank: facts.get(key) for rank, facts in self.by_rank.items()}
        return None if any(value is None or value == "" for value in values.values()) else values

    @property
    def num_replicas(self) -> int | None:
        """Into how many parts every worker's sampler splits its data set, where all say the same."""
        num_parts = self.all_equal("num_replicas")
        return num_parts if isinstance(num_parts, int) else None

    @property
    def splits_one_data_set(self) -> bool:
        """True if the samplers declare that they split one data set between all workers without replacement.

        A ``DistributedSampler`` does: same class, same length, as many parts as workers, each taking another one.
        """
        parts = self.of_each("sampler_rank")
        return (
            self.num_replicas == len(self.by_rank)
            and self.all_equal("sampler") == "DistributedSampler"
            and self.all_equal("dataset_len") is not None
            and parts is not None
            and sorted(parts.values()) == list(range(len(self.by_rank)))
        )

    @property
    def draws_splits(self) -> bool:
        """True if ranks hold other rows of one data set, in no even order: each drew a split of its own."""
        rows = self.of_each("rows_digest")
        drawn = self.all_equal("drawn") is True and bool(self.all_equal("part_of"))
        return drawn and rows is not None and len(rows) == len(set(rows.values())) > 1

    @property
    def is_stream(self) -> bool:
        """True if all workers read an ``IterableDataset``, for which a DataLoader refuses a sampler."""
        # torch gives a DataLoader of an IterableDataset this sampler, whose name old Runs have instead of ``stream``.
        return self.all_equal("stream") is True or self.all_equal("sampler") == "_InfiniteConstantSampler"

    @property
    def in_file_order(self) -> bool:
        """True if all workers declared that they do not shuffle: then who reads what is not left to chance."""
        return self.all_equal("shuffle") is False

    def odd_seeds(self) -> tuple[int, ...]:
        """Ranks whose sampler seed is not that of the others, where seeds must agree: a shuffling sampler in several
        parts.
        """
        seeds = self.of_each("seed")
        if seeds is None or self.all_equal("shuffle") is not True or (self.num_replicas or 1) < 2:
            return ()
        return odd_ranks(seeds)

    def uncovered_parts(self) -> tuple[int, int] | None:
        """(parts taken, parts there are) where workers leave parts of their data set to nobody, else None.

        Workers hold the same rows where their row digests are equal; where one is unknown, all are taken to be the
        same, which can hide a gap but not make one up.
        """
        parts, num_parts = self.of_each("sampler_rank"), self.num_replicas
        if parts is None or num_parts is None or num_parts < 2:
            return None
        rows = self.of_each("rows_digest") or dict.fromkeys(self.by_rank, "")
        parts_by_rows: defaultdict[Any, set[Any]] = defaultdict(set)
        for rank, part in parts.items():
            parts_by_rows[rows[rank]].add(part)
        fewest = min(map(len, parts_by_rows.values()))
        return (fewest, num_parts) if fewest < num_parts else None


ONE_SPLIT = (
    "Give the split a generator of its own with one seed, whatever seed the rank has: random_split(dataset, lengths, "
    "generator=torch.Generator().manual_seed(0)); shuffle before splitting with one seed as well."
)
"""Advice where each rank draws its own split."""

SPLIT_STREAM = (
    "Split the stream in __iter__: with info = torch.utils.data.get_worker_info(), each loader worker of each rank "
    "takes items number rank * info.num_workers + info.id, then every (world_size * info.num_workers)-th; or "
    "datasets.distributed.split_dataset_by_node. A DataLoader takes no sampler for a stream."
)
"""Advice about a stream that is not split between ranks, or between the workers of a loader."""


def declared_sampling(env: dict[int, RankEnv], ranks: Sequence[int]) -> DeclaredSampling:
    """Declarations of ``ranks``; empty ones of ranks that left no environment."""
    return DeclaredSampling({rank: dict(env[rank].data) if rank in env else {} for rank in ranks})
