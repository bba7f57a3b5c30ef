"""Losses and gradients of all workers that jump or vanish."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COLUMNS: tuple[Column, ...] = (
    Column(
        "reduced_norm",
        "float64",
        "grad",
        "L2 norm of the reduced mean gradient, before clipping.",
        after="used_param_norms",
    ),
    Column("group_reduced_norms", "list<float64>", "grad", "[G] the same per group."),
)

LAW = Law(
    columns=COLUMNS,
    checks={
        "grad-spike": Code(
            explains=("loss-spike", "grad-vanishes"),
            group="jump",
            root="gradient-norm",
            signal="grad_norm",
            live="jump",
        ),
        "grad-vanishes": Code(explains=("loss-spike",), group="jump", signal="grad_norm"),
        "loss-spike": Code(group="jump", root="loss", signal="loss"),
    },
)
