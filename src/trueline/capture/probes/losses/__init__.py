"""What a step descends: its loss, by sample and by token."""
