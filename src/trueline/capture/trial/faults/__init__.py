"""Faults of known size in a job that knows nothing of them."""
