"""Positions do not reach attention: the model cannot tell the order of its tokens.

Rotary positions along heads instead of places, an embedding that is computed and not added, position_ids that are all
one number.

What looks like it
------------------
A model that is meant to have no positions: then it has no parts that are called so, and it is told for information.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={"order-ignored": "always", "order-ignored/positions-lost": "always"},
    needs=("order-ignored",),
    settles="Exchange two early tokens of a row: the logits of the last one must change in the first layer.",
)
