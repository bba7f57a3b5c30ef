"""What happens in one step: jumps, and where overflow begins."""
