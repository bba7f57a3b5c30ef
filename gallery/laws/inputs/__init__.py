"""Planted faults: inputs that a model is fed with."""
