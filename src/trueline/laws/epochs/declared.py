"""The order of samples in one epoch and the next."""

from trueline.schema.law import Code, Law

LAW = Law(checks={"epochs-alike": Code(root="sampling"), "labels-sorted": Code(signal="loss")})
