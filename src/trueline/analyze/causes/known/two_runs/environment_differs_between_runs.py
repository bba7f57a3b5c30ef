"""The two jobs ran in different environments.

Versions of packages, commits of sources, variables, switches of torch, devices.

What looks like it
------------------
An image that was updated together with the configuration: both are found then.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "package-differs": "mostly",
        "env-differs": "often",
    },
    needs=("package-differs", "env-differs"),
    settles="Run the job once in the environment of the reference, with nothing else changed, and compare again.",
)
