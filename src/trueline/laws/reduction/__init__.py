"""The mean of gradients over workers."""
