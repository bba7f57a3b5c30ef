"""The columns of the workers table that this law measures or alone reads."""

from __future__ import annotations

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "kept_gradients",
        "list<int64>",
        "",
        "Positions in `RankEnv.params` of those whose gradient was still as the update before had left it when the "
        "backward passes of this step began, and was added to; None where no gradients were looked at.",
        after="unreduced_params",
    ),
    Column(
        "update_facts",
        "string",
        "",
        "On steps whose update is sampled, JSON of what the optimizer declares, and of which elements `update_values` "
        "are.",
        after="clip_values",
    ),
    Column(
        "update_values",
        "list<float64>",
        "",
        "Sampled elements of parameters, gradients and optimizer states before, then of parameters and states after "
        "the update.",
    ),
)
