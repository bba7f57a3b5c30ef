"""Planted faults: influences that a loss must not have: other samples, later tokens, padding."""
