"""Whether the gradient that is descended is that of the loss."""
