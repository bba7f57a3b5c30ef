"""Small real problems, real processes, planted faults and their healthy twins."""
