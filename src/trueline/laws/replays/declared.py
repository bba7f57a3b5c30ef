"""The same work done twice, in the job."""

from trueline.laws.replays.columns import COLUMNS
from trueline.schema.law import Code, Law

LAW = Law(
    columns=COLUMNS,
    answers={"left_out": "rows.left_out_notes"},
    probes=("probe.replay",),
    checks={"replay-differs": Code(signal="grad_norm"), "update-not-read": Code(signal="loss")},
)
