"""One thing that is measured a file."""
