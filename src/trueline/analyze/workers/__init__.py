"""What each rank measured at every step, and which rank is unlike the others."""
