"""What a row of the column ``edge_tokens`` holds, for who writes it and who reads it."""

from __future__ import annotations

from dataclasses import dataclass

from trueline.schema.columns.pass_numbers import PassNumbers


@dataclass(frozen=True, slots=True)
class EdgeTokens(PassNumbers):
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
