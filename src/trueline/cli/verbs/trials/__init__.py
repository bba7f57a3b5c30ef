"""The verbs of `trueline trial`, one a file."""
