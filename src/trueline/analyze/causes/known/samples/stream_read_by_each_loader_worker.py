"""Each worker process of a DataLoader reads the whole stream.

An IterableDataset is copied into every worker: without a split by get_worker_info() the rank reads each sample once a
worker.

What looks like it
------------------
Repeats on purpose, for oversampling.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "sample-repeats": "always",
        "sample-repeats/by-loader-workers|in-order": "always",
    },
    excludes=("sample-repeats/held",),
    settles="Run once with num_workers=0: the repeats are gone if this is it. Split the stream by "
    "torch.utils.data.get_worker_info().",
)
