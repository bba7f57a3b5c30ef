"""Random streams are not as declared: ranks draw the same numbers, or different ones where they should agree.

Equal streams give every rank the same dropout masks and augmentations; different ones where ranks hold parts of one
model make these parts disagree.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "rng-streams": "always",
        "rng-streams/shared-draws": "often",
    },
    excludes=("rng-streams/begins-again",),
    settles="Print torch.initial_seed() on every rank; trueline.seed_all(seed, per_rank=True) gives each its own.",
)
