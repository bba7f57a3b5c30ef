"""The verbs of the `trueline` command, one a file."""
