"""Random streams of ranks and loader workers."""
