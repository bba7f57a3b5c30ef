"""A part of the model is never trained: no gradient reaches it, or one that is always zero.

Two factors that both begin as zeros, a softmax over one number, a mask that lets nothing by, a detach or no_grad, a
checkpoint whose input asks for no gradient. All ranks do the same, and the loss falls as far as the rest can bring it.

What looks like it
------------------
A part that this job is not to train, and that was not frozen: a head that is not used, a backbone under no_grad.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "param-frozen": "always",
        "param-frozen/zero-gradient|no-gradient": "always",
        "who:all": "mostly",
    },
    needs=("param-frozen",),
    excludes=("param-frozen/not-moved",),
    settles="Measure its gradient: if it is wrong, it is cut off on the way (detach, no_grad, a checkpoint); else the "
    "loss does not depend on this part: `trueline trial batch --law gradient -- COMMAND`",
)
