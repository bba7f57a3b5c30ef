"""Planted faults and their healthy twins by the law that must find them: a file, or a folder of one mistake a file."""
