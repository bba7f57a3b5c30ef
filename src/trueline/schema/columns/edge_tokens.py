"""What a row of the column ``edge_tokens`` holds, for who writes it and who reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields


@dataclass(frozen=True, slots=True)
class EdgeTokens:
    """Of a forward pass over token ids [B, T]: what its rows begin and end with, padding by an attention mask aside.

    ``rows`` are those with four attended places or more. Most of them, ``first_rows``, begin with the id ``first``, and
    ``first_doubled`` with that twice and then another. It is read at ``first_reads`` attended places, and stands at
    ``first_pairs`` directly before itself. ``last`` is the same of their ends. ``left`` and ``right`` rows have padding
    on that side.
    """

    rows: int
    first: int
    first_rows: int
    first_doubled: int
    first_reads: int
    first_pairs: int
    last: int
    last_rows: int
    last_doubled: int
    last_reads: int
    last_pairs: int
    left: int
    right: int

    def to_row(self) -> list[int]:
        """The numbers of one pass."""
        return list(astuple(self))

    @classmethod
    def from_row(cls, row: Sequence[int]) -> tuple[EdgeTokens, ...]:
        """From the numbers of all passes of a step; none where they are not of this version."""
        width = len(fields(cls))
        if len(row) % width:
            return ()
        return tuple(cls(*(int(n) for n in row[at : at + width])) for at in range(0, len(row), width))
