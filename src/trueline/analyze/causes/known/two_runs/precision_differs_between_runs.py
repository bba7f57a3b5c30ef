"""The two runs compute a place in different precision.

A cast, or an operation outside of autocast.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "dtype-differs": "always",
    },
    needs=("dtype-differs",),
    settles="Compare the dtypes of the inputs of the call that is named.",
)
