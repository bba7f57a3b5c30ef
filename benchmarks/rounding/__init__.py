"""How far measured rounding is from what `analyze.rounding` and `analyze.op_rounding` expect."""
