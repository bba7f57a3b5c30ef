"""The order of samples in one epoch and the next."""

from trueline.schema.law import Code, Law

LAW = Law(
    checks={"data-set-changes": Code(), "epochs-alike": Code(root="sampling"), "labels-sorted": Code(signal="loss")}
)
