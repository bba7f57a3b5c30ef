"""Clipping is called and clips nothing: it is given no gradient.

Its list of parameters is a generator that something else has used up, it comes before the backward pass or after
zero_grad, or a framework keeps gradients elsewhere. Training runs without the clipping that its settings declare.

What looks like it
------------------
A max_norm that no gradient reaches: then clipping does what it should.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "clip-differs": "always",
        "clip-differs/nothing": "always",
    },
    needs=("clip-differs",),
    settles="Print the norm that clip_grad_norm_ returns: it is 0 where it was given no gradient.",
)
