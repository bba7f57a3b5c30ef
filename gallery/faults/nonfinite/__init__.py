"""NaN, infinities, and magnitudes on the way there."""
