"""The learning rate does not follow its schedule.

Stepped once a rank or micro-batch, not stepped, or started again at a resume.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "schedule-differs": "always",
    },
    needs=("schedule-differs",),
    settles="Print scheduler.last_epoch and the learning rate at every update.",
)
