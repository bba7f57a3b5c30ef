"""A job that runs for one step only, with other batches than it asked for, and what its losses and gradients are."""
