"""Columns of a Run as arrays and facts, which several laws read."""
