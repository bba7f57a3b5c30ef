"""Gradients that are added up over passes, and cleared."""
