"""A hand-written all-reduce is not waited for: the update uses gradients that are still being reduced.

`async_op=True` without `wait()`, or on another stream without an event. Some parameters are reduced by then, some are
not, and others change while the update reads them; which ones is chance.

What looks like it
------------------
Parameters that are left out (`parameter-left-out`): always the same, and the state follows from the gradient.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "gradient-not-reduced": "mostly",
        "gradient-not-reduced/some": "mostly",
        "reduction-mismatch": "mostly",
        "reduction-mismatch/other|not-the-mean|replicas-apart": "often",
        "optimizer-state-stale": "mostly",
        "replica-drift": "always",
        "adapter:manual": "always",
        "trial-sync:ordering": "always",
    },
    needs=("gradient-not-reduced", "reduction-mismatch"),
    excludes=("adapter:ddp", "trial-sync:neither"),
    settles="Call wait() on every handle of an asynchronous all-reduce before the division and the update.",
)
