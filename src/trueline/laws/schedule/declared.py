"""The learning rate over a training."""

from trueline.laws.schedule.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    of_updates=True,
    probes=("probe",),
    checks={
        "schedule-differs": Code(),
    },
)
