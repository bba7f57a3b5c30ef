"""Planted faults: gradients that are added up over passes, and cleared."""
