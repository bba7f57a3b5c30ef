"""Faults of one worker's loss, gradient or configuration."""
