"""Optimizers that do other than they declare, on one rank as on all."""
