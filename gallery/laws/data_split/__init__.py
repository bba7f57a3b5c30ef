"""Planted faults: which samples a rank reads: the split, the order, repeats."""
