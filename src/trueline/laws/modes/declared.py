"""Training and evaluation mode."""

from trueline.laws.modes.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    answers={"facts": "facts.SUBJECTS"},
    checks={
        "draws-end": Code(),
        "evaluation-draws": Code(),
        "evaluation-mode": Code(says=("modules-in-evaluation-mode",)),
        "evaluation-state": Code(),
        "frozen-model-drops": Code(),
        "trains-in-evaluation": Code(says=("modules-in-evaluation-mode",)),
    },
)
