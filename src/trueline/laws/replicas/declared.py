"""Weights that ranks hold alike."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COLUMNS: tuple[Column, ...] = (
    Column(
        "eval_modules",
        "int32",
        "modules",
        "Modules of the model in evaluation mode in the forward pass, on sampled steps.",
        after="num_micro",
    ),
    Column(
        "buffer_digests",
        "list<uint64>",
        "",
        "[B] digest of each buffer before the first forward pass of this step in training mode.",
        after="closing_digests",
    ),
    Column(
        "changed_buffers",
        "list<uint64>",
        "",
        "[B] digest of each buffer that DDP broadcasts, before the update, where the forward passes of this step have "
        "changed it; else 0.",
    ),
)

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    checks={
        "buffers-overwritten": Code(),
        "rank-config-differs": Code(
            explains=("gradient-not-reduced", "reduction-mismatch", "replica-drift", "worker-silent", "*unlike-worker"),
            dated=True,
            names_both=True,
            says=("mode/modules-in-evaluation-mode",),
        ),
        "replica-drift": Code(explains=("*unlike-worker",), dated=True, names_both=True),
        "shards-equal": Code(),
        "updates-apart": Code(
            explains=(
                "rank-config-differs",
                "gradient-not-reduced",
                "reduction-mismatch",
                "replica-drift",
                "*unlike-worker",
            ),
            dated=True,
            end_comparison=True,
        ),
    },
)
