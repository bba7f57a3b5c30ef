"""Verbs of `trueline trial` that run no job, one a file."""
