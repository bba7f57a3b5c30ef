"""The mean of gradients over workers."""

from trueline.laws.reduction.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    checks={
        "gradient-not-reduced": Code(
            explains=("reduction-mismatch", "replica-drift", "*unlike-worker"),
            root="reduction",
            dated=True,
            names_both=True,
            live="unreduced",
            says=("parameters-without-gradient",),  # backward leaves none where no replica is reduced
            sums_late=1,  # what a reduction gave is judged one sum later
        ),
        "reduction-mismatch": Code(
            explains=("replica-drift", "*unlike-worker"),
            root="reduction",
            dated=True,
            live="mismatch",
            sums_late=1,
            asked_as="reduction",
            says=("extra-pass/passes-not-used",),
        ),
    },
)
