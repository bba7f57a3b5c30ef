"""Findings on judged steps: what is said of a difference, by the kind of its cause."""
