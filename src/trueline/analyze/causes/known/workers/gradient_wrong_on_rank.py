"""One rank computes another gradient from data like the others'.

Its direction or size departs in a way that no factor explains, while its loss is like the others': noise, lost signs,
a kernel or a device that computes wrongly, a hook, another code path in backward.

What looks like it
------------------
Other data or labels, which move the loss too.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-direction-outlier": "often",
        "worker-grad-norm-outlier": "often",
        "who:some": "always",
        "inputs:alike": "always",
        "trial-vote:device": "mostly",
    },
    needs=("worker-direction-outlier", "worker-grad-norm-outlier"),
    excludes=("worker-loss-outlier", "worker-scale"),
    settles="Give this rank's batch to another rank, and run both on the same weights: if the gradients differ, "
    "it is the rank (its device, libraries or code). Whether a backward is wrong: `trueline trial batch --law "
    "gradient -- COMMAND`",
)
