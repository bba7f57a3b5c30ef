"""Weights that ranks hold alike."""
