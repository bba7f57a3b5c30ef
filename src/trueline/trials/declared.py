"""Measurements on a job or a device."""

from trueline.schema.law import Code, Law

LAW = Law(
    command="trueline trial",
    findings={
        "minority-rank": Code(
            manual="One device makes other bits of the same work than the majority, at whatever rank."
        ),
        "restart-differs": Code(
            manual="What a restart of the job goes on with is not what the job has that was never stopped."
        ),
        "layouts-differ": Code(
            manual="A layout of the job makes something else of the same weights and samples than rounding explains."
        ),
        "op-inaccurate": Code(manual="An operation is wrong on this device by more than rounding explains."),
    },
)
