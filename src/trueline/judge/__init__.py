"""Reading and judging Runs. Never imports torch."""
