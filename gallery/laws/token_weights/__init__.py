"""Planted faults: what a token weighs in a loss: counts, division, scale."""
