"""One rank's labels and inputs do not belong together.

Permuted or shifted labels, another label map or tokenizer, annotation noise in one shard, or features in another order.
The rank's loss is above the others', grows away from theirs as they learn, and its gradient points elsewhere.

What looks like it
------------------
Data that is only harder or of another mixture (`other-data-on-rank`): nothing in losses and gradients tells them
apart for certain.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-loss-outlier": "always",
        "worker-loss-outlier/above": "often",
        "worker-grad-norm-outlier": "often",
        "worker-direction-outlier": "often",
        "who:some": "mostly",
        "loss:alike": "always",
        "inputs:alike": "always",
    },
    excludes=("worker-loss-outlier/below", "labels:of-inputs"),
    settles="Print five inputs with their labels, decoded, on that rank and on another at the first step of the "
    "evidence.",
)
