"""The learning rate over a training."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COLUMNS: tuple[Column, ...] = (
    Column(
        "schedule_calls",
        "list<int64>",
        "calls",
        "Of each scheduler of this optimizer that was seen, how often it was stepped between the last forward pass and "
        "this update; 0 of one that does not count its steps.",
        after="lr",
    ),
    Column(
        "schedule_epochs",
        "list<int64>",
        "",
        "Of each of these, its `last_epoch` at this update; empty where one was made that has not been stepped yet.",
    ),
    Column(
        "schedule_rates",
        "list<float64>",
        "",
        "Where it is one scheduler, the learning rate of each parameter group as that has set it last.",
    ),
    Column(
        "schedule_facts",
        "string",
        "",
        "At the first update with these schedulers, JSON of the `optimizer` (a number) and of its `schedules`: their "
        "class and, where they declare how many of their steps they are made for, `length` and the name that it has.",
    ),
    Column(
        "schedule_idle",
        "string",
        "",
        "Where no scheduler drives the optimizer of this update, the classes of one that was stepped, and of its "
        "optimizer, which has made no update so far: `CosineAnnealingLR of AdamW`.",
    ),
    Column(
        "rates_made",
        "list<float64>",
        "",
        "At the first update that is watched, where optimizers were looked at as they were made, the learning rate of "
        "each parameter group as this one was made; empty where that is the default of its class.",
    ),
)

LAW = Law(
    columns=COLUMNS,
    answers={"facts": "facts.SUBJECTS"},
    of_updates=True,
    probes=("probe.steps", "probe.made"),
    checks={
        "schedule-differs": Code(says=("rate-zero", "rate-rises-again")),
        "schedule-length": Code(),
        "schedule-passed": Code(dated=True, says=("rate-rises-again",)),
        "rate-not-in-force": Code(says=("rate-tiny",)),
        "rate-of-first-group": Code(),
        "rate-replaced": Code(),
    },
)
