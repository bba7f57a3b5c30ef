"""The columns of the workers table that this law measures or alone reads."""

from __future__ import annotations

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "group_seen",
        "list<float64>",
        "frac",
        "[G] fraction of the group's gradient elements seen before reduction.",
        after="group_grad_norms",
    ),
    Column(
        "group_entered_factor",
        "list<float64>",
        "",
        "[G] least-squares factor c of entered = c * local: what this worker gave into a reduction by hand, and what "
        "backward had left.",
        after="group_cosine_others",
    ),
    Column(
        "group_entered_residual",
        "list<float64>",
        "rel",
        "[G] |sketch(entered) - c * sketch(local)| over the norm of the local one: 0 where that is all.",
    ),
    Column(
        "group_reduce_own_factor",
        "list<float64>",
        "",
        "[G] where the result is not the mean, by what this worker's gradient would have to be multiplied for it to be "
        "(0: it did not count).",
    ),
    Column(
        "group_reduce_own_residual", "list<float64>", "rel", "[G] the residual left where that is taken into account."
    ),
    Column(
        "group_reduce_residual",
        "list<float64>",
        "rel",
        "[G] |sketch(reduced) - mean of sketches(local)| over the mean local norm.",
    ),
    Column("group_reduce_floor", "list<float64>", "rel", "[G] how large rounding alone can make that residual."),
    Column("group_reduce_factor", "list<float64>", "", "[G] least-squares factor c of reduced = c * mean(local)."),
    Column(
        "group_reduce_shape_residual", "list<float64>", "rel", "[G] the residual left after that factor is taken out."
    ),
    Column(
        "group_used_residual",
        "list<float64>",
        "rel",
        "[G] |sketch(used) - mean over ranks of sketches(used)| over the mean used norm; replicas must agree.",
    ),
    Column("group_used_floor", "list<float64>", "rel", "[G] how large rounding alone can make that residual."),
    Column(
        "group_used_factor", "list<float64>", "", "[G] least-squares factor c of used = c * reduced (clipping: < 1)."
    ),
    Column(
        "group_used_shape_residual",
        "list<float64>",
        "rel",
        "[G] |sketch(used) - c * sketch(reduced)| over its norm: 0 where the optimizer received it scaled.",
    ),
    Column(
        "unreduced_params",
        "list<int64>",
        "",
        "Positions in `RankEnv.params` of those for which the framework held a gradient at the update that it had not "
        "reduced; None where it never does.",
    ),
    Column(
        "group_used_local",
        "list<float64>",
        "rel",
        "[G] |sketch(used) - c * own sketch(local)| over its norm, c fitted: 0 where the local one was used.",
        after="changed_between",
    ),
)
