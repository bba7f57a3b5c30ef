"""Updates of an optimizer, from its gradients, states and settings."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COLUMNS: tuple[Column, ...] = (
    Column(
        "kept_gradients",
        "list<int64>",
        "",
        "Positions in `RankEnv.params` of those whose gradient was still as the update before had left it when the "
        "backward passes of this step began, and was added to; None where no gradients were looked at.",
        after="unreduced_params",
    ),
    Column(
        "update_facts",
        "string",
        "",
        "On steps whose update is sampled, JSON of what the optimizer declares, and of which elements `update_values` "
        "are.",
        after="clip_values",
    ),
    Column(
        "update_values",
        "list<float64>",
        "",
        "Sampled elements of parameters, gradients and optimizer states before, then of parameters and states after "
        "the update.",
    ),
)

LAW = Law(
    columns=COLUMNS,
    of_updates=True,
    answers={"facts": "facts.SUBJECTS"},
    probes=(
        "probe.updates",
        "probe.kept_gradients",
    ),
    checks={
        "master-working-mismatch": Code(),
        "optimizer-detached": Code(explains=("param-frozen",), root="update"),
        "optimizer-state-stale": Code(
            explains=("update-magnitude", "update-lost", "replica-drift", "*unlike-worker", "*jump"), root="update"
        ),
        "param-frozen": Code(
            explains=(
                "param-stops",
                "update-magnitude",
                "update-lost",
                "replica-drift",
                "optimizer-state-stale",
                "*unlike-worker",
                "*jump",
            ),
            root="update",
        ),
        "param-moves-without-gradient": Code(),
        "param-stops": Code(explains=("optimizer-state-stale", "*jump"), root="update"),
        "update-lost": Code(root="update"),
        "update-magnitude": Code(explains=("update-lost", "replica-drift", "*unlike-worker", "*jump"), root="update"),
    },
)
