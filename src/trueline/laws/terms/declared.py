"""What a loss is the sum of."""

from trueline.laws.terms.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    checks={
        "class-weights-reversed": Code(signal="loss"),
        "divided-twice": Code(explains=("loss-scale-wrong",), signal="grad_norm"),
        "outputs-unused": Code(signal="loss"),
        "ratio-is-one": Code(signal="loss", says=("loss-never-moves",)),  # a log-ratio of 0 is a loss of ln 2
        "term-not-divided": Code(signal="loss"),
        "term-without-gradient": Code(signal="loss"),
    },
    answers={"facts": "facts.SUBJECTS"},
)
