"""Attention sees tokens that are to be predicted, or other documents of a packed row: its mask is missing or too wide.

The training loss falls far below what the model reaches when it generates.

What looks like it
------------------
Layers that mix positions otherwise: batch normalisation over positions, a convolution that is padded on both sides, a
pooling over the sequence.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={"influence-leak": "always"},
    needs=("influence-leak",),
    settles="Compare the logits of a prefix with those of the same tokens followed by others: they must be equal.",
)
