"""Which samples a rank reads: the split, the order, repeats."""
