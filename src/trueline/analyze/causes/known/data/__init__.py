"""What ranks read."""
