"""One rank calls backward more often than the others, and what that adds to its gradients is not reduced.

A plot of gradients per layer, a probe or a regulariser of rank 0 alone, called between the reduction and the update.

What looks like it
------------------
A process group that lacks ranks (`wrong-group`): there every rank calls backward equally often.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reduction-mismatch": "always",
        "reduction-mismatch/extra-pass": "always",
        "replica-drift": "mostly",
        "replica-drift/later": "mostly",
    },
    needs=("reduction-mismatch",),
    settles="Print p.grad.norm() after the reduction and just before optimizer.step(), on the rank that calls backward "
    "more often: they should be equal.",
)
