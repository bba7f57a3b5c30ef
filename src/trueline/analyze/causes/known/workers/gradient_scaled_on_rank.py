"""One rank's gradient is multiplied after its loss was taken.

A hook on tensors or parameters, a weight applied between the loss that is logged and backward, or a loss scaler of
this rank alone (then the factor is a power of two).

What looks like it
------------------
A loss that is scaled as a whole (`loss-scaled-on-rank`).
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "worker-scale": "always",
        "worker-scale/loss-same": "always",
        "loss-scale-wrong": "often",
        "loss-scale-wrong/some-ranks": "often",
        "who:some": "mostly",
    },
    excludes=("ranks:one",),
    settles="Print on that rank and another the number that backward starts from (loss.item() where .backward() "
    "is called), and list hooks on parameters.",
)
