"""The verbs of `trueline trial` that run a job again, one a file."""
