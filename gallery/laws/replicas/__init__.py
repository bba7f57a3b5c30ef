"""Planted faults: weights that ranks hold alike."""
