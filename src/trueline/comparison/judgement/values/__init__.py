"""Single values: how far they are from their twins, and whether rounding explains it."""
