"""The indices that samplers drew, as far as passes over the data came to their end: samples by their places, whatever
an augmentation makes of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trueline.store.reader import Run


@dataclass(frozen=True, slots=True)
class IndexPass:
    """One pass of a rank over the data: how many indices were ``drawn`` and how many of them are ``different``, whether
    it ``ended``, and a digest of the first ones, in their order, '' where these are few.
    """

    drawn: int
    different: int
    ended: bool
    order: str


def index_passes(run: Run, rank: int) -> Sequence[IndexPass]:
    """The first passes of a rank; empty where indices were not seen."""
    rows: Sequence[Mapping[str, Any]] = _facts(run, rank).get("passes", ())
    return [IndexPass(row["drawn"], row["different"], row["ended"], row["order"]) for row in rows]


def different_indices(run: Run, ranks: Sequence[int]) -> int | None:
    """How many indices all these ranks have drawn together; None where that is not known of one of them, or where they
    have not drawn as many in one pass as the data set has.
    """
    union, needed, drawn = 0, 0, 0
    for rank in ranks:
        passes = [index_pass for index_pass in index_passes(run, rank) if index_pass.ended]
        bits, size = _facts(run, rank).get("bits"), run.env[rank].data.get("dataset_len") if passes else None
        if not bits or not isinstance(size, int):
            return None
        union |= int(bits, 16)
        needed, drawn = size, drawn + max(index_pass.drawn for index_pass in passes)
    return union.bit_count() if ranks and drawn >= needed else None


def _facts(run: Run, rank: int) -> Mapping[str, Any]:
    data: Mapping[str, Any] = run.env[rank].data if rank in run.env else {}
    return data.get("indices") or {}
