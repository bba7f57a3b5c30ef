"""The two runs were given different data.

Another order, tokenizer, template or preprocessing.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "input-differs": "always",
    },
    needs=("input-differs",),
    settles="Compare the first batch of both runs, decoded.",
)
