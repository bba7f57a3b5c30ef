"""Labels belong to their inputs on one rank only, and on no other.

Targets that lack an offset by rank, as of gathered pairs, are right on rank 0. Its loss falls below the others', which
learn nothing or little, and its gradient points elsewhere.

What looks like it
------------------
Easier data on that rank (`other-data-on-rank`), or labels that its inputs give away.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-loss-outlier": "often",
        "worker-loss-outlier/below": "often",
        "worker-grad-norm-outlier": "often",
        "worker-direction-outlier": "often",
        "who:some": "mostly",
        "loss:alike": "always",
        "inputs:alike": "always",
    },
    needs=("worker-loss-outlier",),
    excludes=("worker-loss-outlier/above", "worker-loss-outlier/several", "labels:of-inputs"),
    settles="Print five inputs with their labels, decoded, on that rank and on two others; if the "
    "others' do not belong together, look at what the targets take from the rank.",
)
