"""Which samples each rank read: repeats, overlaps, and what an epoch left out."""
