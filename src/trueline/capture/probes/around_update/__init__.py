"""Measure what an update uses and leaves, at sampled elements."""
