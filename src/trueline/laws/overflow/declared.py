"""Values that are not finite, and ranges that are nearly full."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COLUMNS: tuple[Column, ...] = (
    Column(
        "skipped_losses",
        "list<int64>",
        "",
        "Where a forward pass came to no backward pass before the next one began, at the next sampled step: forward "
        "passes since this was told last, such ones among them, and of these those whose loss was not finite, and "
        "those to which no gradient came back later.",
    ),
)

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    answers={"fault_path": "nonfinite_reach.fault_path"},
    checks={
        "grad-explosion": Code(
            explains=("overflow-origin", "worker-nonfinite", "*unlike-worker", "*jump"),
            root="range",
            signal="grad_norm",
        ),
        "loss-skipped": Code(signal="loss"),
        "overflow-origin": Code(explains=("worker-nonfinite", "*unlike-worker", "*jump"), root="not-finite"),
        "range-saturation": Code(
            explains=("overflow-origin", "grad-explosion", "worker-nonfinite", "*unlike-worker", "*jump"),
            root="range",
            same_fault=("overflow-origin",),  # the warning before the range is exceeded: the error leads
        ),
        "worker-nonfinite": Code(
            explains=("replica-drift", "reduction-mismatch", "worker-silent", "*unlike-worker", "*jump"),
            root="not-finite",
            signal="loss",
            dated=True,
            live="nonfinite",
        ),
    },
)
