"""Losses and gradients of all workers that jump or vanish."""

from trueline.laws.jumps.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    checks={
        "grad-spike": Code(
            explains=("loss-spike", "grad-vanishes"), group="jump", root="gradient-norm", signal="grad_norm"
        ),
        "grad-vanishes": Code(explains=("loss-spike",), group="jump", signal="grad_norm"),
        "loss-spike": Code(group="jump", root="loss", signal="loss"),
    },
)
