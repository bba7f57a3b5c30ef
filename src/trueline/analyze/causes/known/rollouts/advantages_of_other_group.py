"""Advantages are not those of their own group of responses.

Sequences were shuffled, balanced or padded between reward and advantage, or groups are counted otherwise.

What looks like it
------------------
A group of which some sequences were filtered after the advantages were computed.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "reward-differs": "always",
        "reward-differs/group-law": "always",
    },
    needs=("reward-differs",),
    excludes=("reward-differs/rule|model",),
    settles="Compute the advantages of one group by hand from its rewards, and compare the order of the sequences.",
)
