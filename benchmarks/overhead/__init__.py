"""What watching costs: step time, memory, and growth with the number of workers."""
