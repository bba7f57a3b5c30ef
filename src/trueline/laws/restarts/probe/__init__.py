"""What is measured of a start: states of the optimizer, and running statistics beside the model."""
