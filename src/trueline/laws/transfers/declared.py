"""What a rank sends to another, and what arrives there."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COUNT_BITS = 32
"""Bits of a transfer's number that count; those above are of its group and tag: of others there is no order."""

COLUMNS: tuple[Column, ...] = (
    Column(
        "sent",
        "list<uint64>",
        "",
        "Of tensors that this rank has sent to single ranks since the last row that has any: rank, number of the "
        "transfer to that rank since watching began, and digest as it was sent, of each. The lower 32 bits of a number "
        "count, the upper ones stand for the process group and the tag.",
    ),
    Column(
        "received",
        "list<uint64>",
        "",
        "The same of tensors that single ranks have sent to this one, with the digest as each had arrived.",
    ),
)

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    checks={"received-differs": Code(explains=("*jump",), dated=True, names_both=True)},
)
