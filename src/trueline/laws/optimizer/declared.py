"""Updates of an optimizer, from its gradients, states and settings."""

from trueline.laws.optimizer.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    of_updates=True,
    answers={"facts": "facts.SUBJECTS"},
    probes=(
        "probe.updates",
        "probe.kept_gradients",
        "probe.holdings",
        "probe.masked_rows",
        "probe.unused_rows",
    ),
    checks={
        "decay-on-norms": Code(),
        "masked-rows-decay": Code(),
        "master-working-mismatch": Code(),
        "optimizer-detached": Code(explains=("param-frozen",), root="update"),
        "optimizer-state-stale": Code(
            explains=("update-magnitude", "update-lost", "replica-drift", "*unlike-worker", "*jump"), root="update"
        ),
        "param-frozen": Code(
            says=("parameters-without-gradient",),
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
        "rows-unused": Code(),
        "updated-twice": Code(root="update"),
        "update-lost": Code(root="update", says=("weights-in-16-bits", "states-in-16-bits")),
        "update-magnitude": Code(explains=("update-lost", "replica-drift", "*unlike-worker", "*jump"), root="update"),
    },
)
