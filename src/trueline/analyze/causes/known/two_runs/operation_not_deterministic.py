"""An operation does not return the same bits for the same inputs.

Atomic additions, or threads that add up in the order in which they come; a kernel that is chosen by timing it. The same
job parts from itself at that operation, first by rounding.

What looks like it
------------------
Code that was changed between the two runs; memory that is read before it is written.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={"nondeterministic-op": "always", "trial-repeat:call": "always"},
    needs=("nondeterministic-op",),
    settles="Call the operation again on the same inputs: `trueline trial repeat --in-place -- COMMAND`",
)
