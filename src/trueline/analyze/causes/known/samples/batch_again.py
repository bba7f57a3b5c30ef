"""One batch is trained on again and again.

The iterator of the loader is made anew at every step, so that only its first batch is ever read, or the reader of a
rank hangs and its last batch is used again.

What looks like it
------------------
A stream that every worker of a loader reads whole (`stream-read-by-each-loader-worker`): then new batches keep coming.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "sample-repeats": "always",
        "sample-repeats/held": "always",
    },
    needs=("sample-repeats",),
    settles="Print the first sample of the batch at a few steps in a row.",
)
