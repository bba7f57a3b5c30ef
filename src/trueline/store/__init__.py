"""Runs on disk: written crash-safe while training, read while they grow."""
