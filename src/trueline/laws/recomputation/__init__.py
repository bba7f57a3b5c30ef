"""Activations that are computed again."""
