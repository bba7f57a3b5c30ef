"""The columns of the workers table that this law measures or alone reads."""

from __future__ import annotations

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "eval_modules",
        "int32",
        "modules",
        "Modules of the model in evaluation mode in the forward pass, on sampled steps.",
        after="num_micro",
    ),
    Column(
        "buffer_digests",
        "list<uint64>",
        "",
        "[B] digest of each buffer before the first forward pass of this step in training mode.",
        after="closing_digests",
    ),
)
