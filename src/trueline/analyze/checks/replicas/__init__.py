"""Whether gradients are reduced as they should be, and replicas stay equal."""
