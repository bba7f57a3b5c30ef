"""Whether a remedy makes a job well, and more than any change of it does."""
