"""Checks of rollouts against training, each a file."""
