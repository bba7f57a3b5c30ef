"""Labels are not those of the next token: they are shifted twice, or not at all.

The collator or the data set shifts them, and the model, or its loss, does so again; or one node runs another version of
either. What is divided by the number of labels then counts one more than are used.

What looks like it
------------------
Labels of other samples or with another meaning (`labels-wrong-on-rank`): these are no tokens of the input at any place.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "labels-misplaced": "always",
        "loss-scale-wrong": "often",
    },
    needs=("labels-misplaced",),
    settles="Print input_ids[0, :8] and, where the cross-entropy is called, the first 8 targets.",
)
