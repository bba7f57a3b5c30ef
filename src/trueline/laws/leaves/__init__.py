"""What the loss is computed from."""
