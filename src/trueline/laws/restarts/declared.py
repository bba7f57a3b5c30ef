"""What a start of the job took over from the one before."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COLUMNS: tuple[Column, ...] = (
    Column(
        "opening_states",
        "string",
        "",
        "At the first update that is watched, where the optimizer holds states before it, JSON of their digests: by "
        "name of the state, then by parameter, what this rank holds.",
        after="buffer_digests",
    ),
    Column("closing_states", "string", "", "The same when watching ended, after the update of this step, its last."),
)

LAW = Law(
    columns=COLUMNS,
    answers={"facts": "facts.SUBJECTS"},
    probes=("probe",),
    checks={
        "restart-weights": Code(explains=("*jump",), dated=True),
        "restart-states": Code(explains=("optimizer-state-stale",), dated=True),
        "restart-rate": Code(dated=True),
    },
)
