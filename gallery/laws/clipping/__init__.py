"""Planted faults: gradients clipped by their norm."""
