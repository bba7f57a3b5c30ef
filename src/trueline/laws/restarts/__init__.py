"""What a start of the job took over from the one before."""
