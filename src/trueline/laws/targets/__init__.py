"""Labels and targets of a loss."""
