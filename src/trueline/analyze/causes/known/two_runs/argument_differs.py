"""One call is given another argument.

An epsilon, a scale, a mask or a flag.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "first-divergence": "always",
        "first-divergence/arguments": "always",
    },
    needs=("first-divergence",),
    excludes=("first-divergence/computation", "first-divergence/parameters"),
    settles="Set the argument that is named to that of the reference, and compare again.",
)
