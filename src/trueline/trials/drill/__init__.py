"""What a job can rely on: which faults of known size would be seen in it, and when."""
