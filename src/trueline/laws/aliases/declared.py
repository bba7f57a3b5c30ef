"""One module under several names."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COLUMNS: tuple[Column, ...] = (
    Column(
        "module_aliases",
        "string",
        "",
        "At the first update that is watched, JSON of names, other than that of the model, that an object or a running "
        "function has for a module that is trained, and that call it a copy: lists of the holder, this name, and the "
        "holder's usual one.",
        after="eval_modules",
    ),
    Column(
        "own_loads",
        "int64",
        "",
        "Calls of load_state_dict since the last sampled step that gave the model, or a part of it, its own tensors.",
    ),
)

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    checks={
        "copy-is-model": Code(),
    },
)
