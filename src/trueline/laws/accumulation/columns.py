"""The columns of the workers table that this law measures or alone reads."""

from __future__ import annotations

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "changed_between",
        "list<float64>",
        "",
        "On sampled steps of several backward passes: how many gaps between these were looked at; then of each "
        "gradient that was changed in one its position in `RankEnv.params`, the pass before, the factor (NaN: not one) "
        "and whether no element grew or changed its sign.",
        after="kept_gradients",
    ),
)
