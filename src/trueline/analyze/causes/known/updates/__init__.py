"""What the optimizer does."""
