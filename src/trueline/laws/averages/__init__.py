"""Averages of the weights: EMA, SWA, momentum teachers."""
