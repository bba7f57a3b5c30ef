"""Experiments: what a question needs that recorded Runs do not answer."""
