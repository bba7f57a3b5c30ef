"""Torch maths on one tensor: norms, sketches, digests. Knows no hooks and no ranks."""
