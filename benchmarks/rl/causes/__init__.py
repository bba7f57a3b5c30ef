"""Disagreements of a rollout engine and a trainer, each with its right cause, in two models and from two sources."""
