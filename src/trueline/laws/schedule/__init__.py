"""The learning rate over a training."""
