"""One recorded step as rows, values and tensors, and where values that are not finite come from."""
