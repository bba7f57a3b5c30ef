"""Faults between a rollout engine and its trainer."""
