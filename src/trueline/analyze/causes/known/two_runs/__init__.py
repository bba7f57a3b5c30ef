"""How a run differs from its reference."""
