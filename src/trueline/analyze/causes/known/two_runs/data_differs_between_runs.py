"""The two jobs are to train on different data.

Another data set, split, template, tokenizer or order, or other samples in the first update.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "dataset-differs": "always",
    },
    needs=("dataset-differs",),
    settles="Read the data of the reference with its tokenizer and template, and compare the first losses again.",
)
