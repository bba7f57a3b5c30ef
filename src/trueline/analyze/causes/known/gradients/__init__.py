"""What becomes of gradients between the backward pass and the update."""
