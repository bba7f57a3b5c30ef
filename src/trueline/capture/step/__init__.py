"""One step from its first forward pass to its row: the recorder and what it asks."""
