"""One module under several names."""
