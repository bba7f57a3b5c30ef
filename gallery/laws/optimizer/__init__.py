"""Planted faults: updates of an optimizer, from its gradients, states and settings."""
