"""Attention or pooling sees padding: its mask is lost, inverted, or not used there.

What a sample gets then depends on how long the longest sample of its batch is.

What looks like it
------------------
Convolutions that reach over the end of a sample.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={"batch-leak": "always", "batch-leak/padding|padding-alone": "always"},
    needs=("batch-leak",),
    settles="Run the model on a row with more padding: what it returns at the other positions must stay. Or try the "
    "job: `trueline trial batch --law padding -- COMMAND`",
)
