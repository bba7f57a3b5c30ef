"""The two jobs are configured otherwise.

A learning rate, schedule, batch, precision, shape of the model or switch that is not that of the reference.

What looks like it
------------------
Settings that differ on purpose: `trueline diff` lists all of them, the most telling first.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "config-differs": "always",
    },
    needs=("config-differs",),
    settles="Run `trueline diff` on both, set the first setting that it names as in the reference, and compare again.",
)
