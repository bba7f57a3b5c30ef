"""Planted faults: losses and gradients of all workers that jump or vanish."""
