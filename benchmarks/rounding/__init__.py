"""How far measured rounding is from what `compare.expect.rounding` and `compare.expect.ops` expect."""
