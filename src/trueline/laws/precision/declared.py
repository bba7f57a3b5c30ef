"""The precision that is declared, and the one that is in force."""

from trueline.laws.precision.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    checks={"autocast-not-in-force": Code()},
    answers={"facts": "facts.SUBJECTS"},
)
