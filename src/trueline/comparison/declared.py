"""A Run and its reference."""

from trueline.schema.law import Code, Law

LAW = Law(
    command="trueline compare",
    findings={
        "input-differs": Code(
            explains=("first-divergence",),
            manual="A value that no recorded call computed, such as the batch, differs: compare the data first.",
        ),
        "weight-differs": Code(
            explains=("first-divergence",),
            group="between-runs",
            root="divergence",
            seen_in_values=True,
            manual="Parameters or buffers differ before any update that was compared, or changed between two steps.",
        ),
        "structure-differs": Code(
            explains=("site-missing", "dtype-differs", "weight-differs", "first-divergence"),
            group="between-runs",
            root="divergence",
            seen_in_values=True,
            manual="One run makes other calls, connects them differently, or gives them other arguments.",
        ),
        "dtype-differs": Code(
            explains=("first-divergence",),
            group="between-runs",
            root="divergence",
            manual="One place, or (information) most of the model, computes in another precision.",
        ),
        "first-divergence": Code(
            group="between-runs",
            root="divergence",
            manual="The first call, gradient or loss that differs by more than rounding explains.",
        ),
        "explained-by-rounding": Code(manual="Every difference that was judged is within what rounding explains."),
        "optimizer-differs": Code(
            explains=("weight-differs",),
            manual="The update differs although what goes into it agrees, or settings of the optimizer do.",
        ),
        "corruption-pattern": Code(
            explains=("weight-differs", "optimizer-differs", "first-divergence"),
            manual="Stored values differ in blocks of memory; whose numbers are in them.",
        ),
        "nondeterministic-op": Code(
            manual="A call makes other bits of the same tensors in two Runs of one job with fingerprints."
        ),
        "site-missing": Code(
            group="between-runs",
            root="divergence",
            manual="Values of one run that have no counterpart in the other.",
        ),
    },
)
