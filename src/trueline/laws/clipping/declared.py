"""Gradients clipped by their norm."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COLUMNS: tuple[Column, ...] = (
    Column(
        "clip_facts",
        "string",
        "",
        "On sampled steps, JSON of each call that clips by a norm: what it was given, and which elements `clip_values` "
        "are.",
        after="initial_values",
    ),
    Column(
        "clip_values",
        "list<float64>",
        "",
        "For each of these calls: the norm that it clips by (NaN where ranks hold parts of that), the squared norms of "
        "this rank's shards and of what it holds whole (NaN where not computed), the loss scale, then sampled elements "
        "of gradients before and after.",
    ),
)

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    checks={
        "clip-differs": Code(
            explains=(
                "reduction-mismatch",
                "update-magnitude",
                "update-lost",
                "replica-drift",
                "*unlike-worker",
                "*jump",
            ),
            root="gradient-norm",
            signal="grads_factor",
        ),
        "clip-not-applied": Code(),
        "norm-misreported": Code(
            explains=(
                "clip-differs",
                "reduction-mismatch",
                "update-magnitude",
                "update-lost",
                "replica-drift",
                "*unlike-worker",
                "*jump",
            )
        ),
    },
)
