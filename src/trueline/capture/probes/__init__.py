"""Probes: what is measured in a step. One file for each, but for the small ones in ``surroundings``."""
