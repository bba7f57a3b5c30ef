"""What should tell samples or positions apart is the same for all: a time, a class, positions or labels.

A range with one number in it (`randint(0, 1)`), a cast or an integer division, a default of zeros that a collator or a
wrapper fills in, a condition that is dropped for all samples in place of some.

What looks like it
------------------
A job that trains one class, one speaker or one noise level on purpose: then nothing is wrong.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "input-constant": "always",
        "input-constant/condition|positions|one-class|lost": "always",
    },
    needs=("input-constant/condition|positions|one-class|lost",),
    settles="Print what the finding names at two steps, where the data are read and where the model is called.",
)
