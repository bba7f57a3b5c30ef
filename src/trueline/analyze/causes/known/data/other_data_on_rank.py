"""One rank reads other data than the others: another mixture, difficulty or length.

A shard that is not a random part of the data: sorted files, one language or source, longer sequences; or inputs that
were prepared otherwise, as without normalisation, or with ids of another vocabulary (another tokenizer, `hash()` of
words, which each process salts), which may show in gradients alone.

What looks like it
------------------
Labels that do not belong to their inputs (`labels-wrong-on-rank`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-loss-outlier": "often",
        "worker-loss-outlier/above|below": "often",
        "worker-grad-norm-outlier": "often",
        "worker-direction-outlier": "often",
        "who:some": "mostly",
        "loss:alike": "always",
        "inputs:other": "mostly",
    },
    settles="Print five inputs with their labels, decoded, on that rank and on another; if it is meant, list the "
    "others in worker_groups.",
)
