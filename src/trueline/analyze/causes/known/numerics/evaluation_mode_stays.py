"""The model stays in evaluation mode after an evaluation.

Nothing calls model.train() behind a validation, a generation or a checkpoint.

What looks like it
------------------
A rank alone that does so (`evaluation-mode-on-rank`); dropout that is switched off on purpose.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "evaluation-mode": "always",
    },
    needs=("evaluation-mode",),
    settles="Print model.training at the step that is named and at the one before.",
)
