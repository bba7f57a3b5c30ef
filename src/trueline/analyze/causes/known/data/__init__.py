"""What is in the samples, and in their labels."""
