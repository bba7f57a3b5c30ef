"""One training framework a file."""
