"""Gradients clipped by their norm."""
