"""Planted faults: the mean of gradients over workers."""
