"""What a model keeps from one batch to the next."""
