"""The vocabulary that every other package speaks: plain facts, no torch, no files."""
