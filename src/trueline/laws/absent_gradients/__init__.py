"""A worker whose gradient does not come."""
