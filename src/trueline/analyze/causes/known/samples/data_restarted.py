"""The data begin again where the job is started again.

Weights and steps go on, and the position in the data was not saved, or the sampler's epoch not set: samples are read
twice, and the end of the epoch perhaps never.

What looks like it
------------------
A new epoch that has the order of the one before.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "sample-repeats": "always",
        "sample-repeats/restarted": "always",
    },
    needs=("sample-repeats",),
    settles="Print the indices of the first batch after the restart, and those of the batch at the same step without "
    "one.",
)
