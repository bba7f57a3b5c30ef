"""A teacher, reference or reward model is left in training mode.

It was made, or loaded, and nothing calls eval() on it; or a train() of a module that holds it turned it back.

What looks like it
------------------
A model whose noise is wanted, as features with dropout for one behind it.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "frozen-model-drops": "always",
    },
    needs=("frozen-model-drops",),
    settles="Call eval() on the model that is named, and compare what it returns for one batch twice.",
)
