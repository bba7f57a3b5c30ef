"""What reaches the model is nothing but zeros, as what was read was lost on the way.

A copy to the device or between processes that was not waited for, or went into a buffer that was cleared or used again.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "input-constant": "always",
        "input-constant/zeros": "always",
        "steps:one": "often",
    },
    needs=("input-constant",),
    settles="Print what the loader returns at that step and what the model reads: if only the latter is zeros, wait "
    "for the copy (synchronise the stream, or copy without non_blocking).",
)
