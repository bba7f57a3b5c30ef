"""Planted faults: the learning rate over a training."""
