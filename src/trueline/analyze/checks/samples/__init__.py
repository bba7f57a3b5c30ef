"""Which samples each rank reads, and how many tokens they hold."""
