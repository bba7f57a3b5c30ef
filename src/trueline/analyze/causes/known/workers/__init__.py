"""What one rank computes."""
