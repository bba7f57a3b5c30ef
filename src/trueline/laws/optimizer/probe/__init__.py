"""What is measured for this law, in the training process."""
