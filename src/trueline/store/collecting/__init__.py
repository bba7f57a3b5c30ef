"""What pieces of a Run are, whether they belong together, and how they are copied."""
