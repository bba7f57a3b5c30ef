"""Recorded steps on disk: rows, tensors and call stacks."""
