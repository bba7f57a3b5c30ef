"""Faults between two runs: each is compared with a healthy reference run."""
