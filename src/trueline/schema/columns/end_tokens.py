"""What a row of the column ``end_tokens`` holds, for who writes it and who reads it."""

from __future__ import annotations

from dataclasses import dataclass

from trueline.schema.columns.pass_numbers import PassNumbers

NO_TOKEN = -1
"""In place of an id: there is none, or it is not known."""


@dataclass(frozen=True, slots=True)
class EndTokens(PassNumbers):
    """Of a forward pass over token ids [B, T] and the targets of its cross-entropy that count (`targets` of them).

    ``rows`` are those of which it is told how they end: those that have padding, by an attention mask, where any has,
    else all. ``end`` is the id at the last attended place of most of them, of ``end_rows``; in ``single_rows`` of these
    another id stands before it. It is read at ``end_reads`` places, and ``end_targets`` targets are it. ``pads`` places
    are padding, most of them with the id ``pad``. Of the ``target_rows`` rows that have a target, the last one is
    ``last`` in most, in ``last_rows``. ``gaps`` places have no target while both neighbours have one, most of them with
    the id ``gap``: ``gap_places``, and ``gap_targets`` targets are it. ``eos`` is what the configuration of the model
    calls the end of a text: it is read at ``eos_reads`` attended places, and ``eos_targets`` targets are it.
    """

    length: int
    rows: int
    end: int
    end_rows: int
    single_rows: int
    end_reads: int
    end_targets: int
    targets: int
    pads: int
    pad: int
    target_rows: int
    last: int
    last_rows: int
    gaps: int
    gap: int
    gap_places: int
    gap_targets: int
    eos: int
    eos_reads: int
    eos_targets: int
