"""Which samples each rank reads, and when."""
