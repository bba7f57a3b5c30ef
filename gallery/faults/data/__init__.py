"""Faults in what the ranks read."""
