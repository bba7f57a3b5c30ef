"""Gradients that are added up over passes, and cleared."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

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

LAW = Law(
    columns=COLUMNS,
    answers={"facts": "facts.SUBJECTS"},
    probes=("probe",),
    checks={
        "grad-accumulates": Code(explains=("loss-scale-wrong", "*unlike-worker", "*jump"), signal="grad_norm"),
    },
)
