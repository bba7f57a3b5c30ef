"""The order of samples in one epoch and the next."""
