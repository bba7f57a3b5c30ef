"""A mixture of experts routes the same tokens to other experts in engine and trainer.

A near tie in the router goes one way here and the other way there; each such token has a gap of its own.

What looks like it
------------------
Any gap that comes with the same weights, tokens and settings: attention kernels, precision of a part.
"""

from trueline.analyze.causes.cause import Cause
from trueline.analyze.causes.known.rollouts import implementations_differ

_ALIKE = implementations_differ.CAUSE
"""No sign that is recorded tells the two apart."""

CAUSE = Cause(
    shows=_ALIKE.shows,
    needs=_ALIKE.needs,
    excludes=_ALIKE.excludes,
    settles="Replay the engine's routing in the trainer, if it is a mixture of experts; else compute both sides in "
    "float32, then with the same attention implementation.",
)
