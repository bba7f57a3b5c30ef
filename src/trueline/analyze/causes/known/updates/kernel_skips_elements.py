"""The update leaves elements as they were though their gradient is not zero.

A kernel that skips blocks of some sizes or dtypes.

What looks like it
------------------
Updates that rounding loses (`updates-lost-in-rounding`), frozen parameters.

Known cases
-----------
pytorch#191763: fused SGD in bfloat16 on CPUs.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "param-frozen": "always",
        "param-frozen/not-moved": "often",
        "optimizer-state-stale": "often",
        "trial-knobs:fused-optimizer": "mostly",
        "trial-sync:neither": "mostly",
        "trial-remedy-unfused:recovers": "mostly",
    },
    needs=("param-frozen",),
    excludes=("param-frozen/zero-gradient", "param-frozen/no-gradient"),
    settles="Run the same optimizer with foreach=False, fused=False: if the parameters move, it is the kernel.",
)
