"""Planted faults: training and evaluation mode."""
