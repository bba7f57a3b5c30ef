"""What a start of the job took over from the one before."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COLUMNS: tuple[Column, ...] = (
    Column(
        "opening_states",
        "string",
        "",
        "At the first update that is watched, where the optimizer holds states before it, JSON of their digests: by "
        "name of the state, then by parameter, what this rank holds. `parameter 0 of group 0` of the optimizer is one "
        "that the model does not have, as the copies that DeepSpeed and Megatron update.",
        after="buffer_digests",
    ),
    Column("closing_states", "string", "", "The same when watching ended, after the update of this step, its last."),
    Column(
        "running_facts",
        "string",
        "",
        "At the first sampled step from the third on, JSON of objects beside the model that have a mean and a spread "
        "of the shape of a sample, and a count: class, and the names of these three.",
    ),
    Column("running_counts", "list<float64>", "", "On sampled steps from there on, the count of each of these."),
)

LAW = Law(
    columns=COLUMNS,
    answers={"facts": "facts.SUBJECTS"},
    probes=("probe.states", "probe.running"),
    checks={
        "restart-weights": Code(explains=("*jump",), dated=True),
        "restart-states": Code(explains=("optimizer-state-stale",), dated=True),
        "restart-rate": Code(dated=True, says=("rate-rises-again",)),
        "restart-statistics": Code(explains=("*jump",), dated=True),
    },
)
