"""Probes of this law, which measure in the training process."""
