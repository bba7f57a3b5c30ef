"""Torch maths on one tensor: no hooks, no ranks."""
