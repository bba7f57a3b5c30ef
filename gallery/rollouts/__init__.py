"""A small policy, a rollout engine of its own for it, and what can be wrong between the two."""
