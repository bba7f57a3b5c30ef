"""A stream is read whole by every rank.

An IterableDataset takes no sampler: it has to be split by rank itself.

Known cases
-----------
datasets#5360 and its family.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "duplicate-data": "always",
        "duplicate-data/same-samples": "often",
        "sampler:stream": "always",
        "who:all": "mostly",
    },
    excludes=("sampler:split", "sampler:whole", "duplicate-data/positions-kept", "duplicate-data/some-ranks"),
    settles="Print the first samples of each rank's stream: they should differ. Split it with "
    "split_dataset_by_node, or stride by rank.",
)
