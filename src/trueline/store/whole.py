"""The statistics of a whole tensor from what each rank recorded of its shard."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trueline.schema.records import STAT_NAMES
from trueline.schema.stats import MergeError, TensorStats, merged


def stats_of(row: Mapping[str, Any]) -> TensorStats | None:
    """What was measured of the value of one row of ``Run.records``; None where not all of it was, as in imported rows
    without counts.
    """
    if row["numel"] is None or row["nan"] is None:
        return None
    return TensorStats.from_row(
        [float("nan") if row[name] is None else row[name] for name in STAT_NAMES],
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
    shards: dict[tuple[int, ...], tuple[int, TensorStats]] = {}
    shape: tuple[int, ...] = ()
    for row in rows:
        place = json.loads(row["mesh"] or "null")
        stats = stats_of(row)
        name = f"{row['name']}#{row['call']}:{row['slot']}"
        if place is None or stats is None:
            why = "is no shard of a distributed tensor" if place is None else f"was not measured ({row['note']})"
            raise MergeError(f"What rank {row['rank']} recorded of {name} {why}; whole tensors are merged from shards.")
        if "pending_sum" in (row["flags"] or ""):
            raise MergeError(
                f"{name} waits for a sum over ranks (placements {', '.join(place['placements'])}); its parts cannot be "
                "merged. Look at the value after the sum."
            )
        shape = tuple(place["shape"])
        axes = zip(place["coordinate"], place["placements"], strict=True)
        key = tuple(coordinate for coordinate, placement in axes if not placement.startswith("R"))
        rank, first = shards.setdefault(key, (row["rank"], stats))
        if first != stats:
            raise MergeError(f"Ranks {rank} and {row['rank']} hold the same part of {name}, but not the same values.")
    return merged([stats for _, stats in shards.values()], shape=shape)
