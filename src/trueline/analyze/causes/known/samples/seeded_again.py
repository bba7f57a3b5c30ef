"""A random generator is seeded anew at every step.

Noise, augmentation, masks or drawn indices that are mixed into the batch are then the same at every step, and on every
rank that uses the same seed: a sample that comes again, comes at its old position of the batch or not at all.

What looks like it
------------------
Ranks that read the same data (`data-not-split`): then samples are shared in one step and not repeated in others.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "duplicate-data": "always",
        "duplicate-data/positions-kept": "always",
    },
    needs=("duplicate-data/positions-kept",),
    settles="Print the first numbers of the noise at two steps in a row: equal ones settle it.",
)
