"""Samples of a batch are mixed inside of the model.

The batch and another dimension are exchanged (`view` for `transpose`, `batch_first` forgotten), something is normalised
or averaged over the batch, outputs are put back in another order, or edges of joined graphs do not count from where
the nodes of their graph begin.

What looks like it
------------------
Padding that is not masked, where it is another sample's length that decides how much of it there is.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={"batch-leak": "always", "batch-leak/rows|edges": "always"},
    needs=("batch-leak",),
    settles="Run the model on one row alone: it must return what it returns for that row in the batch. Or try the job: "
    "`trueline trial batch --law permute,halves -- COMMAND`",
)
