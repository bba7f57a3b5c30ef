"""Which samples a rank reads: the split, the order, repeats."""

from trueline.schema.law import Code, Law

LAW = Law(
    checks={
        "duplicate-data": Code(
            explains=("shard-overlap", "dispersion-low", "rng-streams"),
            root="sampling",
            names_both=True,
            same_fault_on_ranks=("shard-overlap",),  # samples that two ranks read in one step, and in one epoch
        ),
        "rows-lost": Code(),
        "sample-repeats": Code(explains=("shard-overlap", "*unlike-worker"), root="sampling"),
        "shard-overlap": Code(explains=("dispersion-low",), root="sampling", names_both=True),
        "shard-small": Code(explains=("*unlike-worker",)),
    },
)
