"""`trueline demo`: a small language model trained under six settings, each judged."""
