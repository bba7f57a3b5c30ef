"""Dumps of msProbe."""
