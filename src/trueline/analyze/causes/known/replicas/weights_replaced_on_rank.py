"""Something other than the optimizer writes weights on some ranks.

Averaged weights of an evaluation that are not put back, a checkpoint that one rank loads, noise or a pruning mask that
each rank draws for itself, weights clipped on one rank.

What looks like it
------------------
An update that differs between ranks (`updates-not-the-same`): which of the two it is, weights alone do not show, but
the optimizer's states do where the same elements of several ranks were sampled. Hardware that damages many weights, but
no state, between two sampled updates cannot be told from a script.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "replica-drift": "always",
        "replica-drift/later": "always",
        "replica-drift/several": "always",
        "reduction:judged": "always",
    },
    needs=("replica-drift",),
    excludes=(
        *("gradient-not-reduced", "reduction-mismatch", "updates-apart", "rank-config-differs", "adapter:fsdp2"),
        "replica-drift/states-apart",
        "replica-drift/received-scaled",
    ),
    settles="Print a checksum of the weights on every rank before and after optimizer.step at the last step at which "
    "replicas were equal: equal after it, something else wrote them.",
)
