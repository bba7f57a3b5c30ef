"""Which parameters ranks hold whole, which are shards of one, and which are alike."""
