"""One operation of a Run by itself: its call again, and whether what it returns is what rounding explains."""
