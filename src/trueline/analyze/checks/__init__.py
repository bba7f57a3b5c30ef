"""One check a file; the docstring of the file is its manual page."""
