"""The statistics of a whole tensor from what each rank recorded of its shard."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trueline.schema.columns.records import STAT_NAMES
from trueline.schema.stats import MergeError, TensorStats, merged


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Where a rank's part of a DTensor lies, as the column ``mesh`` says. ``sizes``, ``names``, ``coordinate`` and
    ``placements`` have an entry an axis of the mesh; ``shape`` (of the whole) and ``offsets`` (of the part's first
    element; None where it is no contiguous block) one a dim.
    """

    sizes: tuple[int, ...]
    names: tuple[str, ...]
    coordinate: tuple[int, ...]
    placements: tuple[str, ...]
    shape: tuple[int, ...]
    offsets: tuple[int, ...] | None

    @property
    def shard(self) -> tuple[int, ...]:
        """The key of the part: ranks with equal keys hold the same values."""
        axes = zip(self.coordinate, self.placements, strict=True)
        return tuple(coordinate for coordinate, placement in axes if not placement.startswith("R"))

    @property
    def pending_sum(self) -> bool:
        """True if the parts are terms of a sum that has not been computed."""
        return any(placement.startswith("P") for placement in self.placements)


@functools.lru_cache(maxsize=4096)
def shard_place(mesh: str) -> ShardPlace:
    """What the column ``mesh`` of a row says."""
    document = json.loads(mesh)
    sizes, names, coordinate, placements, shape = (
        tuple(document.get(key, ())) for key in ("mesh", "names", "coordinate", "placements", "shape")
    )
    offsets = document.get("offsets")
    return ShardPlace(sizes, names, coordinate, placements, shape, None if offsets is None else tuple(offsets))


def stats_of(row: Mapping[str, Any]) -> TensorStats | None:
    """What was measured of the value of one row of ``Run.records``; None where not all of it was, as in imported rows
    without counts.
    """
    if row["numel"] is None or row["nan"] is None:
        return None
    return TensorStats.from_row(
        [float("nan") if row.get(name) is None else row[name] for name in STAT_NAMES],
        dtype=row["dtype"],
        shape=tuple(row["shape"]),
        numel=row["numel"],
        fingerprint=row["fingerprint"],
        exponents=row["exponents"],
    )


def whole_stats(rows: Sequence[Mapping[str, Any]]) -> TensorStats:
    """The statistics of the DTensor whose local parts are these rows, one of every rank of its mesh.

    Ranks that hold the same shard count once. Raises ``MergeError`` where a part was not measured or is missing, where
    it waits for a sum over ranks (the parts of a sum say nothing about the sum), and where replicas differ.
    """
    parts: list[tuple[int, ShardPlace, TensorStats]] = []
    name = ""
    for row in rows:
        stats = stats_of(row)
        name = f"{row['name']}#{row['call']}:{row['slot']}"
        if row["mesh"] is None or stats is None:
            why = "is no shard of a distributed tensor" if row["mesh"] is None else f"was not measured ({row['note']})"
            raise MergeError(f"What rank {row['rank']} recorded of {name} {why}; whole tensors are merged from shards.")
        parts.append((row["rank"], shard_place(row["mesh"]), stats))
    return whole_of(name, parts)


def whole_of(name: str, parts: Iterable[tuple[int, ShardPlace, TensorStats]]) -> TensorStats:
    """As ``whole_stats``, of (rank, place, statistics) of the parts; ``name`` is for the error."""
    shards: dict[tuple[int, ...], tuple[int, TensorStats]] = {}
    shape: tuple[int, ...] = ()
    for rank, part, stats in parts:
        if part.pending_sum:
            raise MergeError(
                f"{name} waits for a sum over ranks (placements {', '.join(part.placements)}); its parts cannot be "
                "merged. Look at the value after the sum."
            )
        shape = part.shape
        holder, first = shards.setdefault(part.shard, (rank, stats))
        if first != stats:
            raise MergeError(f"Ranks {holder} and {rank} hold the same part of {name}, but not the same values.")
    return merged([stats for _, stats in shards.values()], shape=shape)
