"""Whether one rank's loss or gradient is unlike the others'."""
