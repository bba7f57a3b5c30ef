"""Running statistics of batch norm."""
