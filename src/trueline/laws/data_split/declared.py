"""Which samples a rank reads: the split, the order, repeats."""

from trueline.laws.data_split.columns import COLUMNS
from trueline.schema.law import Code, Law

UNREAD = ("samples-never-read", "few-of-the-data-set")
"""Marks of what follows where ranks read less of the data set than they should."""

LAW = Law(
    columns=COLUMNS,
    answers={"facts": "facts.SUBJECTS"},
    checks={
        "batches-dropped": Code(),
        "duplicate-data": Code(
            explains=("shard-overlap", "dispersion-low", "rng-streams"),
            root="sampling",
            names_both=True,
            says=UNREAD,
            same_fault_on_ranks=("shard-overlap",),  # samples that two ranks read in one step, and in one epoch
        ),
        "held-out-trained": Code(says=("nothing-held-out",)),
        "rows-lost": Code(says=UNREAD),
        "sample-repeats": Code(
            explains=("shard-overlap", "*unlike-worker"), root="sampling", says=(*UNREAD, "samples-twice-in-an-epoch")
        ),
        "shard-overlap": Code(explains=("dispersion-low",), root="sampling", names_both=True, says=UNREAD),
        "shard-small": Code(explains=("*unlike-worker",), says=UNREAD),
    },
)
