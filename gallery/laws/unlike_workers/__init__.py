"""Planted faults: a worker that is unlike the others: its loss, its gradient, its direction."""
