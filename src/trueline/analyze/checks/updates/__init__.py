"""Whether the optimizer does what it declares."""
