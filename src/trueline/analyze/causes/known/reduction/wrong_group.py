"""Gradients are reduced over another set of ranks than those that train together.

A process group that ends at the node, pairs instead of all, or leaves one rank out.

What looks like it
------------------
A wrong result on one rank (`collective-corrupted`); under FSDP2, a mesh (`mesh-leaves-ranks-out`).

Known cases
-----------
Megatron-LM#1628.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reduction-mismatch": "always",
        "reduction-mismatch/not-the-mean|other": "always",
        "who:all": "mostly",
        "steps:many": "always",
        "replica-drift": "mostly",
        "replica-drift/later": "always",
    },
    excludes=(
        *("reduction-mismatch/after-the-mean", "reduction-mismatch/extra-pass"),
        "replica-drift/received-scaled",
    ),
    settles="Print dist.get_process_group_ranks(group) of the group that reduces, on every rank.",
)
